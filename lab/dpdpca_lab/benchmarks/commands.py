"""`dpdpca bench`: measures one phase at one size, and compares it with its floor and with another library."""

import json
from collections.abc import Callable
from typing import Annotated

import typer

from dpdpca_protocol.errors import UsageError
from dpdpca_runtime.command_options import AsJson

app = typer.Typer(help="Measure a phase, and compare it with its bare arithmetic.", no_args_is_help=True)

Features = Annotated[int, typer.Option(min=1, max=20_000, help="Number d of encoded features.")]
Owners = Annotated[
    int, typer.Option(min=1, max=100_000, help="Number L of owners; large numbers are simulated.")
]
KeyBits = Annotated[
    int, typer.Option("--key-bits", min=2048, max=8192, help="Length of the modulus in bits, for paillier.")
]
Release = Annotated[str, typer.Option(help="The kind of release: joint or masked.")]
Suite = Annotated[
    str | None,
    typer.Option(
        help="How owners hide their values: pads or paillier; default: pads, but paillier for a masked"
        " release or with --against."
    ),
]
Blinded = Annotated[
    bool, typer.Option("--blinded", help="Owners draw the noise, and blind their shares; needs pads.")
]
Against = Annotated[
    str, typer.Option(help="The library to compare paillier with: phe, pypaillier, heu or none.")
]
Workers = Annotated[int, typer.Option(min=0, help="Number of cores; 0 means all.")]
Rounds = Annotated[int, typer.Option(min=1, help="How many times to measure; the result is the median.")]


def _bench(
    phase: str,
    features: int,
    owners: int,
    key_bits: int,
    release: str,
    suite: str | None,
    blinded: bool,
    against: str,
    workers: int,
    rounds: int,
    as_json: bool,
) -> None:
    from dpdpca_lab.benchmarks import padded, phases
    from dpdpca_lab.benchmarks.peers import PEERS, load_peer
    from dpdpca_protocol.study import ReleaseKind
    from dpdpca_protocol.terms.terms import SuiteName
    from dpdpca_runtime.workers import core_count

    suite = chosen_suite(suite, release, against)
    if against not in PEERS or release not in ("joint", "masked") or key_bits % 8:
        raise UsageError(
            "bad-option",
            f"--against {against}, --release {release} or --key-bits {key_bits} is not possible",
            f"use --against {'|'.join(PEERS)}, --release joint|masked, and --key-bits with a multiple of 8",
        )
    check_blinded(blinded, suite, owners)
    cores = min(workers or core_count(), core_count())
    size = phases.Size(
        features,
        owners,
        key_bits,
        ReleaseKind(release),
        cores,
        rounds,
        suite=SuiteName(suite),
        blinded=blinded,
    )
    if size.suite is SuiteName.PADS:
        measured = padded.PHASES[phase](size)
    else:
        measured = getattr(phases, f"bench_{phase}")(size, load_peer(against, key_bits, cores))
    facts = {
        **measured.facts(),
        "features": features,
        "owners": owners,
        "key_bits": None if size.suite is SuiteName.PADS else key_bits,
        "release": release,
        "suite": suite,
        "blinded": blinded,
    }
    show(facts, as_json)


def chosen_suite(suite: str | None, release: str, against: str) -> str:
    """The suite to measure. Raises UsageError if it cannot be measured with these options."""
    if suite is None:
        return "paillier" if release != "joint" or against != "none" else "pads"
    if suite == "paillier" or (suite, release, against) == ("pads", "joint", "none"):
        return suite
    raise UsageError(
        "bad-option",
        f"--suite {suite} with --release {release} and --against {against} is not possible",
        "use --suite paillier, or --suite pads with --release joint and without --against",
    )


def check_blinded(blinded: bool, suite: str, owners: int) -> None:
    """Raises UsageError if no blinded study is possible with these options."""
    if blinded and (suite != "pads" or owners < 2):
        raise UsageError(
            "bad-option",
            f"--blinded with the suite {suite} and --owners {owners} is not possible",
            "use --blinded with --suite pads and at least two owners",
        )


def show(facts: dict[str, object], as_json: bool) -> None:
    """Print what was measured."""
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        if value is not None and value != []:
            typer.echo(f"{name:<24} {f'{value:.6g}' if isinstance(value, float) else value}")


def _phase(name: str, owners_by_default: int, release_by_default: str) -> Callable[..., None]:
    """The command of a phase; all four take the same options."""

    def command(
        features: Features = 64,
        owners: Owners = owners_by_default,
        key_bits: KeyBits = 3072,
        release: Release = release_by_default,
        suite: Suite = None,
        blinded: Blinded = False,
        against: Against = "none",
        workers: Workers = 0,
        rounds: Rounds = 3,
        as_json: AsJson = False,
    ) -> None:
        _bench(name, features, owners, key_bits, release, suite, blinded, against, workers, rounds, as_json)

    return command


for _name, _owners, _release, _example, _help in (
    (
        "encrypt",
        1,
        "joint",
        "--features 617 --against phe",
        "Measure one owner's whole share, from its integers to chunks of ciphertexts.",
    ),
    (
        "aggregate",
        3,
        "joint",
        "--features 617 --owners 10",
        "Measure all shares, from their sealed files to the stored products.",
    ),
    (
        "release",
        3,
        "masked",
        "--features 617 --against phe",
        "Measure the release, from products and noise to its stored chunks.",
    ),
    (
        "decrypt",
        3,
        "joint",
        "--features 617",
        "Measure the decryption, from the release's ciphertexts to the noisy scatter.",
    ),
):
    app.command(_name, help=_help, epilog=f"Example: dpdpca bench {_name} {_example} --json")(
        _phase(_name, _owners, _release)
    )
