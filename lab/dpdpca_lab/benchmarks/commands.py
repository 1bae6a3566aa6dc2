"""`dpdpca bench`: one phase at one size, beside its floor and beside another library."""

import json
from collections.abc import Callable
from typing import Annotated

import typer

from dpdpca_protocol.errors import UsageError
from dpdpca_runtime.command_options import AsJson

app = typer.Typer(help="Measure a phase beside the floor of its arithmetic.", no_args_is_help=True)

Features = Annotated[int, typer.Option(min=1, max=20_000, help="Encoded features d.")]
Owners = Annotated[int, typer.Option(min=1, max=100_000, help="Owners L; many are simulated.")]
KeyBits = Annotated[int, typer.Option("--key-bits", min=2048, max=8192, help="Length of the modulus.")]
Release = Annotated[str, typer.Option(help="joint or masked.")]
Against = Annotated[str, typer.Option(help="phe, pypaillier, heu or none.")]
Workers = Annotated[int, typer.Option(min=0, help="Cores; 0 for all.")]
Rounds = Annotated[int, typer.Option(min=1, help="Turns; medians count.")]


def _bench(
    phase: str,
    features: int,
    owners: int,
    key_bits: int,
    release: str,
    against: str,
    workers: int,
    rounds: int,
    as_json: bool,
) -> None:
    from dpdpca_lab.benchmarks import phases
    from dpdpca_lab.benchmarks.peers import PEERS, load_peer
    from dpdpca_protocol.study import ReleaseKind
    from dpdpca_runtime.workers import core_count

    if against not in PEERS or release not in ("joint", "masked") or key_bits % 8:
        raise UsageError(
            "bad-option",
            "no such peer, release or key length",
            f"--against {'|'.join(PEERS)}, --release joint|masked, --key-bits a multiple of 8",
        )
    cores = min(workers or core_count(), core_count())
    size = phases.Size(features, owners, key_bits, ReleaseKind(release), cores, rounds)
    measure = getattr(phases, f"bench_{phase}")
    measured = measure(size, load_peer(against, key_bits, cores))
    facts = {
        **measured.facts(),
        "features": features,
        "owners": owners,
        "key_bits": key_bits,
        "release": release,
    }
    show(facts, as_json)


def show(facts: dict[str, object], as_json: bool) -> None:
    """Prints what was measured."""
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
        against: Against = "none",
        workers: Workers = 0,
        rounds: Rounds = 3,
        as_json: AsJson = False,
    ) -> None:
        _bench(name, features, owners, key_bits, release, against, workers, rounds, as_json)

    return command


for _name, _owners, _release, _example, _help in (
    (
        "encrypt",
        1,
        "joint",
        "--features 617 --against phe",
        "One owner's whole share, from its integers to chunks of ciphertexts.",
    ),
    (
        "aggregate",
        3,
        "joint",
        "--features 617 --owners 10",
        "All shares, from their sealed files to the stored products.",
    ),
    (
        "release",
        3,
        "masked",
        "--features 617 --against phe",
        "The release, from products and noise to its stored chunks.",
    ),
    ("decrypt", 3, "joint", "--features 617", "The release, from its ciphertexts to the noisy scatter."),
):
    app.command(_name, help=_help, epilog=f"Example: dpdpca bench {_name} {_example} --json")(
        _phase(_name, _owners, _release)
    )
