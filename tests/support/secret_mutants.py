"""Every place where the product draws randomness or uses a secret key, and mutants that make it public.

The places come from the code, so that a new one is found. Each is a secret with a test that notices when
anybody can compute it, or is no secret, with the reason. `python tests/support/secret_mutants.py FILE [PART]`
runs the mutants, each against its test, and writes to FILE what became of them.
"""

import ast
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WINGS = ("protocol", "runtime", "services", "clients")
SECONDS = 60

_SOURCE = "OS_RANDOMNESS"
_DRAWS = {"bytes", "below"}
_TOKENS = {
    "token_hex": '"00" * {}',
    "token_bytes": "bytes({})",
    "token_urlsafe": '"A" * {}',
    "randbelow": "0",
}
_KEYS = {
    "Ed25519PrivateKey": "from_private_bytes(bytes(32))",
    "MLKEM768PrivateKey": "from_seed_bytes(bytes(64))",
    "X25519PrivateKey": "from_private_bytes(bytes(32))",
}
_SAMPLERS = {"make_gaussian", "make_laplace"}
_KEYED = {
    "AESGCM",
    "ChaCha20",
    "ChaCha20Poly1305",
    "HKDF",
    "HMAC",
    "KeyStream",
    "blake2b",
    "derive",
    "digest",
    "new",
    "sha256",
    "sha512",
    "shake_256",
}
_SECRET_NAME = re.compile(r"(^|_)(key|secret|seed|passphrase|password)$")

_PUBLIC = '''
class _Public:
    """Randomness that anybody can compute."""

    def __init__(self):
        import random

        self._source = random.Random(0)

    def bytes(self, count):
        return self._source.randbytes(count)

    def below(self, bound):
        return self._source.randrange(bound)


_GIVEN = _Public()
'''

_AT_THE_GATE = "owner/test_page_gate.py::test_links_sessions_forms_and_paths_differ"
SECRETS = {
    # randomness of ciphertexts and keys
    "dpdpca_protocol/paillier/bases.py Comb.random_power": "test_each_encryption_has_its_own_randomness",
    "dpdpca_protocol/paillier/cipher.py Encryptor.__init__": "test_each_encryption_has_its_own_randomness",
    "dpdpca_protocol/paillier/keys.py SecretKey.decrypt": "test_secret_powers_are_blinded",
    "dpdpca_protocol/paillier/keys.py SecretKey.residue_root": "test_secret_powers_are_blinded",
    "dpdpca_protocol/paillier/keys.py random_unit": "test_units_differ",
    "dpdpca_protocol/paillier/primes.py random_prime": "test_primes_differ",
    "dpdpca_protocol/paillier/primes.py _uniform_prime": "test_factors_below_primes_differ",
    "dpdpca_user_service/work.py make_key": "test_each_study_has_its_own_key",
    "dpdpca_owner/actions.py work_ahead": "owner/test_own_secrets.py::test_what_is_made_ahead_differs",
    "dpdpca_owner/actions.py review": "owner/test_own_secrets.py::test_no_two_samples_are_alike",
    "dpdpca_owner/upload.py ShareSender.__init__": "owner/test_own_secrets.py::test_no_two_shares_are_alike",
    # the re-randomisers of a masked release: pool, exponents, mask
    "dpdpca_protocol/paillier/residues.py ResidueProducts.random_steps": "test_products_of_a_pool_differ",
    "dpdpca_proxy/precomputed.py _make_parts": "test_no_randomizer_is_made_twice",
    "dpdpca_proxy/precomputed.py residues_for": "test_no_randomizer_is_made_twice",
    "dpdpca_proxy/worker.py rerandomized_count": "test_a_count_never_looks_the_same",
    "dpdpca_proxy/worker.py _masked": "test_a_masked_release_never_looks_the_same",
    "dpdpca_proxy/worker.py draw": "test_masks_differ",
    "dpdpca_protocol/release/release.py draw_mask": "test_masks_differ",
    # noise of proxy and owners
    "dpdpca_protocol/privacy/gaussian.py discrete_gaussian": "test_noise_differs",
    "dpdpca_protocol/privacy/gaussian.py _sampler": "test_noise_differs",
    "dpdpca_protocol/privacy/mechanisms/discrete_laplace.py _sampler": "test_noise_differs",
    "dpdpca_protocol/privacy/gaussian_draws.py draw_gaussians": "test_our_sampler_uses_its_source",
    "dpdpca_protocol/privacy/gaussian_draws.py _below": "test_our_sampler_uses_its_source",
    "dpdpca_protocol/privacy/gaussian_draws.py _happens": "test_our_sampler_uses_its_source",
    "dpdpca_protocol/privacy/gaussian_draws.py _is_below": "test_our_sampler_uses_its_source",
    # salts of chunks, and the key of the marks of copies
    "dpdpca_protocol/wire/salts.py draw_salt": "test_salts_differ",
    "dpdpca_proxy/worker.py multiply_chunks": "test_salts_differ",
    "dpdpca_proxy/shares.py digest(data_key)": "proxy/test_shares.py::"
    "test_the_mark_of_a_chunk_depends_on_the_ciphertexts_and_on_the_studys_key",
    "dpdpca_proxy/shares.py digest(key)": "proxy/test_shares.py::"
    "test_the_mark_of_a_chunk_depends_on_the_ciphertexts_and_on_the_studys_key",
    # pads: their keys, and what follows from the keys
    "dpdpca_user_service/work.py make_pads_key": "test_each_study_has_its_own_key",
    "dpdpca_protocol/release/ciphers.py Pads.encrypt": "test_reference.py::"
    "test_padded_values_never_look_the_same",
    "dpdpca_protocol/pads/keys.py ShareKeys.draw": "test_padded_shares.py::test_no_two_keys_are_alike",
    "dpdpca_protocol/pads/keys.py PadsSecret.generate": "test_padded_shares.py::test_no_two_keys_are_alike",
    "dpdpca_protocol/pads/streams.py ChaCha20(key)": "test_pads.py::"
    "test_every_pad_differs_with_key_and_chunk",
    "dpdpca_protocol/pads/masks.py derive(shared_secret)": "test_masks.py::"
    "test_the_masks_of_a_pair_follow_its_secret",
    "dpdpca_protocol/pads/streams.py digest(salt_key)": "test_padded_shares.py::"
    "test_a_salt_is_an_hmac_of_the_index",
    # the second noise, the order of pairs, the fingerprints of records
    "dpdpca_user/results/second_noise.py sha256(secret)": "test_second_noise.py::"
    "test_the_same_release_under_two_keys_has_two_draws",
    "dpdpca_protocol/records/seeded_noise.py KeyStream(seed)": "test_second_noise.py::"
    "test_the_same_release_under_two_keys_has_two_draws",
    "dpdpca_protocol/records/seeded_noise.py sha256(key)": "test_seeded_noise.py::"
    "test_each_owner_has_noise_of_its_own",
    "dpdpca_protocol/records/pairing.py sha256(key)": "test_the_order_of_pairs_follows_a_secret",
    "dpdpca_protocol/records/pairing.py ChaCha20(seed)": "test_the_order_of_pairs_follows_a_secret",
    "dpdpca_owner/records/shuffle.py KeyStream(seed)": "test_the_order_of_pairs_follows_a_secret",
    "dpdpca_protocol/reference.py run_study": "test_the_order_of_pairs_follows_a_secret",
    "dpdpca_owner/records/fingerprint.py blake2b(self._key)": "test_fingerprints_follow_a_secret",
    # keys of parties, ledgers and studies; seals
    "dpdpca_protocol/randomness.py _OsRandomness.bytes": "test_the_source_never_repeats",
    "dpdpca_protocol/randomness.py _OsRandomness.below": "test_the_source_never_repeats",
    "dpdpca_protocol/wire/signing.py IdentityKey.generate": "test_each_party_has_its_own_keys",
    "dpdpca_protocol/wire/kem.py KemKey.generate": "test_each_party_has_its_own_keys",
    "dpdpca_protocol/wire/sealing.py ChaCha20Poly1305(key)": "test_seals_open_with_their_own_secret_alone",
    "dpdpca_protocol/wire/sealing.py derive(passphrase)": "test_seals_open_with_their_own_secret_alone",
    "dpdpca_protocol/wire/sealing.py seal_at_rest": "test_no_two_seals_are_alike",
    "dpdpca_protocol/wire/sealing.py seal_with_passphrase": "test_no_two_seals_are_alike",
    "dpdpca_protocol/messages/study_messages.py SealedComponents.seal_once": "test_messages.py::"
    "test_components_that_are_sent_once_open_for_each_owner_alone",
    "dpdpca_proxy/study_files.py StudyFiles.write": "test_no_two_seals_are_alike",
    "dpdpca_proxy/study_files.py CallFiles.put": "test_cluster_calls.py::test_no_two_kept_calls_are_alike",
    "dpdpca_runtime/cluster/calls.py seal_call": "test_cluster_calls.py::test_no_two_envelopes_are_alike",
    "dpdpca_runtime/cluster/calls.py execute": "test_cluster_calls.py::test_no_two_envelopes_are_alike",
    "dpdpca_user_service/keyring.py Keyring.close": "test_no_two_seals_are_alike",
    "dpdpca_proxy/proxy.py open_proxy": "test_each_study_at_the_proxy_has_its_own_data_key",
    "dpdpca_proxy/studies.py accept_manifest": "test_each_study_at_the_proxy_has_its_own_data_key",
    "dpdpca_owner/accounts/ledger_file.py LedgerFile.create": "test_each_ledger_has_its_own_key_and_number",
    "dpdpca_owner/home.py OwnerHome.create": "test_each_ledger_has_its_own_key_and_number",
    "dpdpca_owner/recovery.py _key": "owner/test_own_secrets.py::test_a_recovered_ledger_is_new",
    "dpdpca_owner/recovery.py _rebuild": "owner/test_own_secrets.py::test_a_recovered_ledger_is_new",
    "dpdpca_owner/accounts/entries.py Batch.__init__": "test_ledger.py::"
    "test_a_head_tells_nobody_what_was_booked_since_an_earlier_head",
    "dpdpca_owner/accounts/entries.py Batch.add": "test_ledger.py::"
    "test_a_head_tells_nobody_what_was_booked_since_an_earlier_head",
    # what lets somebody in
    "dpdpca_proxy/enrolment.py invite": "test_invitations_and_tokens_differ",
    "dpdpca_user/home.py UserHome.create": "test_invitations_and_tokens_differ",
    "dpdpca_runtime/http/signature.py RequestSigner.sign": "test_invitations_and_tokens_differ",
    "dpdpca_owner/page/gate.py StartLink.renew": _AT_THE_GATE,
    "dpdpca_owner/page/gate.py Gate.__init__": _AT_THE_GATE,
    "dpdpca_owner/page/gate.py Gate._open": _AT_THE_GATE,
}
"""The test that notices, below tests/unit; in test_secrets.py where no file is named."""

NO_SECRETS = {
    "dpdpca_protocol/wire/kem.py": "a key that shows that there is ML-KEM, and is forgotten",
    "dpdpca_runtime/asgi/problems.py log_incident": "the number of an incident, shown to both sides",
    "dpdpca_runtime/files.py replacing": "the name of a file that is being written",
    "dpdpca_owner/carrying.py FolderTransport._sign": "the name of a file in a folder that is no secret",
    "dpdpca_runtime/presence.py Presence.name": "the name of a process",
    "dpdpca_proxy/precomputed.py _write_part": "the name of a file in a private folder",
    "dpdpca_proxy/store/objects.py ObjectStore.__init__": "the name of an object that is written as a trial",
    "dpdpca_proxy/study_files.py StudyFiles._on_cluster": "the name of a folder in a private one",
    "dpdpca_runtime/cluster/executor.py ClusterExecutor._ask": "the number of a call",
    "dpdpca_proxy/worker.py make_release": "the name of a folder in a private one",
    "dpdpca_user_service/chains.py _write_down": "the id of a row",
    "dpdpca_user_service/routes/studies.py create": "the id of a row",
    "dpdpca_protocol/terms/sketch_matrix.py shake_256(seed)": "the seed of a sketch is in its manifest",
    "dpdpca_user/planning/wide_chain.py _sketch": "the seed of a sketch is in its manifest",
    "dpdpca_user/planning/preview.py following_round": "the seed of a sketch is in its manifest",
    "dpdpca_user_service/chains.py _advance": "the seed of a sketch is in its manifest",
    "dpdpca_user_service/work.py open_wide": "the bootstrap of a result that is noisy already",
    "dpdpca_user_service/work.py open_release": "the bootstrap of a result that is noisy already",
    "dpdpca_user/results/deviates.py uniforms": "the bootstrap of a result that is noisy already",
    "dpdpca_user/commands/combining.py show_combination": "the bootstrap of a result that is noisy already",
    "dpdpca_user/estimator.py FederatedPCA.from_models": "the bootstrap of a result that is noisy already",
    "dpdpca_user/commands/plan.py _rehearse": "made-up records",
    "dpdpca_user/local.py DPPCA.fit": "the order of pairs: the guarantee holds for each order",
    "dpdpca_cli/federation/processes.py free_port": "a port to try",
    "dpdpca_runtime/http/retry.py": "how long to wait",
}

SECRET_TYPES = {
    "BegunShare": ["dpdpca_protocol/pads/keys.py ShareKeys.draw"],
    "CallFiles.data_key": [
        "dpdpca_proxy/studies.py accept_manifest",
        "dpdpca_proxy/study_files.py CallFiles.put",
    ],
    "Contribution.noise_seed": [
        "dpdpca_protocol/records/seeded_noise.py sha256(key)",
        "dpdpca_protocol/records/seeded_noise.py KeyStream(seed)",
    ],
    "IdentityKey": ["dpdpca_protocol/wire/signing.py IdentityKey.generate"],
    "Invitation": ["dpdpca_proxy/enrolment.py invite"],
    "KemKey": ["dpdpca_protocol/wire/kem.py KemKey.generate"],
    "Keyring": ["dpdpca_user_service/keyring.py Keyring.close"],
    "MadeKey": [
        "dpdpca_user_service/work.py make_key",
        "dpdpca_user_service/work.py make_pads_key",
    ],
    "Padded": ["dpdpca_protocol/release/ciphers.py Pads.encrypt"],
    "PadsSecret": ["dpdpca_protocol/pads/keys.py PadsSecret.generate"],
    "PadKey": ["dpdpca_protocol/pads/masks.py derive(shared_secret)"],
    "SecretKey": [
        "dpdpca_protocol/paillier/primes.py random_prime",
        "dpdpca_protocol/paillier/primes.py _uniform_prime",
    ],
    "Served.url": ["dpdpca_owner/page/gate.py StartLink.renew"],
    "Session": ["dpdpca_owner/page/gate.py Gate._open"],
    "ShareKeys": [
        "dpdpca_protocol/pads/keys.py ShareKeys.draw",
        "dpdpca_protocol/pads/streams.py ChaCha20(key)",
        "dpdpca_protocol/pads/streams.py digest(salt_key)",
    ],
    "StudyFiles": ["dpdpca_proxy/studies.py accept_manifest", "dpdpca_proxy/study_files.py StudyFiles.write"],
}
"""Each type that shows no content, or not all of it: the places whose mutants make its secrets public."""

OPEN_TYPES = {
    "Agent.passphrase": "a passphrase that the owner chose",
    "DataLocation": "an address may hold a password that the owner chose",
    "SqlSource": "an address may hold a password that the owner chose",
    "Digest": "shown in part, because it is long",
    "ObjectStore": "its credentials are the operator's, and it holds none itself",
    "_Required": "a word in a table",
}


@lru_cache(maxsize=1)
def hiding_types() -> set[str]:
    """Every class of the product that says itself how it is shown, and every field that is not shown."""
    found = set()
    for wing in WINGS:
        for path in sorted((ROOT / wing).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found |= _hidden_in(node)
    return found


def _hidden_in(kind: ast.ClassDef) -> set[str]:
    found = set()
    for node in kind.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__repr__":
            found.add(kind.name)
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
            said = {word.arg: ast.unparse(word.value) for word in node.value.keywords}
            # A field that is computed from the others holds nothing of its own.
            if said.get("repr") == "False" and "init" not in said:
                found.add(f"{kind.name}.{ast.unparse(node.target)}")
    return found


@lru_cache(maxsize=1)
def places() -> dict[str, Path]:
    """The file of every place, by its name: the module, then a function that draws, or a use of a key."""
    found = {}
    for wing in WINGS:
        for path in sorted((ROOT / wing).rglob("*.py")):
            for name in places_in(path.read_text(encoding="utf-8")):
                found[f"{path.relative_to(ROOT / wing)} {name}".strip()] = path
    return found


def places_in(source: str) -> list[str]:
    """The functions of a module that draw, "" for the module itself, and its uses of keys."""
    tree = ast.parse(source)
    return [*_drawing(tree), *_uses(tree)]


def mutants(source: str, name: str) -> Iterator[str]:
    """Modules with one place made public: each draw of the function `name`, or the key in a use of a key."""
    if "(" in name:
        yield _mutant(source, name)
        return
    (function,) = (each for each, where in _functions(ast.parse(source)) if where == name)
    for number in range(len(_draws(function))):
        yield _mutant(source, name, number)


def _mutant(source: str, name: str, number: int = 0) -> str:
    tree = ast.parse(source)
    if "(" in name:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                _blank(node, name)
    else:
        for function, where in _functions(tree):
            if where == name:
                _make_public(function, _draws(function)[number])
        body = ast.parse(_PUBLIC).body
        after = next(i for i, each in enumerate(tree.body) if not isinstance(each, ast.Expr))
        tree.body[after:after] = body
    return ast.unparse(ast.fix_missing_locations(tree))


def _functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    def walk(node: ast.AST, where: str) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield child, f"{where}{child.name}"
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{where}{child.name}.")

    yield from walk(tree, "")


def _drawing(tree: ast.Module) -> list[str]:
    """The functions that draw; an empty name for the module itself."""
    functions = list(_functions(tree))
    within = {id(node) for function, _ in functions for node in ast.walk(function)}
    names = [where for function, where in functions if any(map(_is_draw, ast.walk(function)))]
    outside = (node for node in ast.walk(tree) if id(node) not in within)
    return names + [""] * any(_is_draw(node) for node in outside)


def _draws(function: ast.AST) -> list[ast.AST]:
    """Each draw of a function. To ask whether a source is the system's is no draw."""
    asked = {
        id(node)
        for each in ast.walk(function)
        if isinstance(each, ast.Compare)
        for node in ast.walk(each)
        if isinstance(node, ast.Name)
    }
    return [node for node in ast.walk(function) if _is_draw(node) and id(node) not in asked]


def _is_draw(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            return name == _SOURCE
        case ast.Call(func=ast.Attribute(value=ast.Name(id="secrets"))):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id=kind), attr="generate")):
            return kind in _KEYS
        case ast.Call(func=ast.Attribute(value=source, attr=attribute)):
            return attribute in _DRAWS and ast.unparse(source).endswith("randomness")
        case ast.Call(func=ast.Name(id=name)):
            return name in _SAMPLERS
    return False


def _uses(tree: ast.Module) -> list[str]:
    """Each use of a secret key in a hash, stream or seal, as callee(name)."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _callee(node) in _KEYED)
    return sorted({f"{_callee(call)}({name})" for call in calls for name in _secrets_in(call)})


def _callee(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _secrets_in(call: ast.Call) -> set[str]:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    nodes = (node for each in given for node in ast.walk(each))
    return {ast.unparse(node) for node in nodes if _is_secret(node)}


def _is_secret(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _SECRET_NAME.search(name) is not None
    return False


def _blank(call: ast.Call, name: str) -> None:
    class Blank(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            if _is_secret(node) and f"{_callee(call)}({ast.unparse(node)})" == name:
                return ast.parse(f"bytes(len({ast.unparse(node)}))", mode="eval").body
            return self.generic_visit(node)

    call.args = [Blank().visit(each) for each in call.args]
    call.keywords = [Blank().visit(each) for each in call.keywords]


def _make_public(function: ast.FunctionDef | ast.AsyncFunctionDef, draw: ast.AST) -> None:
    """Replaces one draw of the function. A source that it is given stays where it is only passed on."""
    given = function.args
    renewed = []
    positional = [*given.posonlyargs, *given.args]
    defaults = [*zip(positional[len(positional) - len(given.defaults) :], given.defaults, strict=True)]
    defaults += [
        (arg, value) for arg, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value
    ]
    for argument, default in defaults:
        if default is draw:
            assert isinstance(default, ast.Name)
            default.id = "_GIVEN"
            renewed.append(f"{argument.arg} = _Public() if {argument.arg} is _GIVEN else {argument.arg}")

    class Public(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            self.generic_visit(node)
            return _published(node) if node is draw else node

    function.body = [Public().visit(statement) for statement in function.body]
    start = 1 if ast.get_docstring(function) is not None else 0
    function.body[start:start] = ast.parse("\n".join(["_public = _Public()", *renewed])).body


def _published(node: ast.AST) -> ast.AST:
    if isinstance(node, ast.Name):
        text = "_Public()"
    else:
        assert isinstance(node, ast.Call)
        function = node.func
        if isinstance(function, ast.Name):
            return ast.parse("(lambda values: [7] * len(values))", mode="eval").body
        assert isinstance(function, ast.Attribute)
        given = ", ".join(ast.unparse(each) for each in node.args)
        if function.attr == "generate":
            kind = ast.unparse(function.value)
            text = f"{kind}.{_KEYS[kind]}"
        elif function.attr in _DRAWS:
            text = f"_public.{function.attr}({given})"
        else:
            text = _TOKENS[function.attr].format(given)
    return ast.parse(text, mode="eval").body


def main(file: str, part: str = "") -> None:
    """Runs the mutants of the places whose names contain `part`."""
    from mutant_runner import Bench

    found = {}
    where = places()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), WINGS)
        chosen = {place: test for place, test in SECRETS.items() if part in place}
        tests = tuple(dict.fromkeys(map(node_of, chosen.values())))
        if bench.run(tests, 10 * SECONDS, compiled=True) != 0:
            raise RuntimeError(f"tests fail without a mutant:\n{bench.log()}")
        for place, test in chosen.items():
            path = str(where[place].relative_to(ROOT))
            source = bench.source(path)
            missed = []
            for number, mutant in enumerate(mutants(source, place.partition(" ")[2])):
                bench.put(path, mutant)
                status = bench.run((node_of(test),), SECONDS)
                # A test that fails has noticed; one that hangs or cannot be collected has not.
                if os.waitstatus_to_exitcode(status) != 1:
                    missed.append(f"draw {number}: status {status}")
            bench.put(path, source)
            found[place] = ", ".join(missed) or "noticed"
            print(f"{found[place]:10} {place}", flush=True)
    Path(file).write_text(json.dumps(found, indent=1), encoding="utf-8")


def node_of(test: str) -> str:
    """The test below `tests`."""
    return f"unit/{test}" if "::" in test else f"unit/test_secrets.py::{test}"


if __name__ == "__main__":
    main(*sys.argv[1:])
