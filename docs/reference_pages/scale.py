"""`docs/scale.md`: what a study costs for up to ten million owners, from measured unit costs."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from dpdpca_lab.scale.checked import FEATURES, Checked
from dpdpca_lab.scale.model import (
    COMPONENTS,
    OF_A_REGION,
    SKETCH_ROWS,
    WALLS,
    Kind,
    Prices,
    Study,
    Units,
    first_wall,
)
from reference_pages.markdown import table

MEASURED = Path(__file__).resolve().parents[1] / "scale" / "measured.json"

_OWNERS = (100, 1000, 10_000, 100_000, 1_000_000, 10_000_000)
_FEATURES = (100, 1000, 10_000, 100_000)

_INTRODUCTION = f"""
# Up to internet scale, on paper

This page says what a study would cost with 100 to 10,000,000 owners and 100 to 100,000 features, and which
limit it would meet first. The figures come from a model: simple arithmetic with measured unit costs
(`dpdpca_lab.scale.model`). Nobody has run a study of ten million owners. A simulation checks the model with
up to 100,000 owners, each with real keys, a real share and a real signature. Its results are below.

`dpdpca bench scale --owners 100000 --save docs/scale/measured.json` measures again. `make reference` then
writes this page anew.

Four ways are compared:

- **full matrix, pads**: a joint study, the default. An owner sends 1 + d + d(d + 1)/2 values.
- **full matrix, blinded**: the same, and each two owners share masks.
- **full matrix, Paillier**: a joint study with `suite = "paillier"`.
- **sketch and lift, pads**: in three rounds, an owner sends a sketch of at most {SKETCH_ROWS} rows and
  {COMPONENTS} columns of d values. This is designed and **not built**.

*Regional* means that each {OF_A_REGION:,} owners have a proxy of their own, which passes on one sum, and that
a proxy above them adds these sums. This is **not built** either. Pre-studies are left out, because they have
at most d values.
"""

_WALLS_TEXT = """
## Where the first wall stands

*Rule at* is the largest number of owners that a number in this version allows. Such a number could be
changed. *Machine at* is the largest number for which machines are large enough. "no limit" means: not up to
ten million owners.
"""

_REST = """
## What the model leaves out

- Failures, repeated requests, and owners that come late.
- The distance between machines: all requests were measured over loopback.
- The growth of the database: an index of ten million rows is slower than one of a thousand.
- The time of the disk: the model counts the bytes that a proxy keeps, not the seconds that it writes.
- What an owner's own machine and network cost.
"""


def page() -> str:
    checked = Checked.load(MEASURED)
    lines = [*_INTRODUCTION.strip().splitlines(), "", "## Unit costs", "", *_units(checked.units)]
    lines += ["## The cost of one study", "", *_costs(checked.units)]
    lines += [*_WALLS_TEXT.strip().splitlines(), "", *_walls(checked.units)]
    lines += ["## The model against the simulation", "", *_check(checked)]
    return "\n".join([*lines, *_REST.strip().splitlines()])


def _units(units: Units) -> list[str]:
    u = units
    rows = [
        ["an owner's share under pads", _seconds(u.owner_share), _seconds(u.owner_value), "for each value"],
        ["masks, for each other owner", _seconds(u.pair_share), _seconds(u.pair_value), "for each value"],
        [
            "the proxy's checks and sums of a share",
            _seconds(u.proxy_share),
            _seconds(u.proxy_value),
            "for each value",
        ],
        ["a request to the proxy", _seconds(u.request), _seconds(u.request_byte), "for each byte"],
        [
            "the data user's opening of a share",
            _seconds(u.user_share),
            _seconds(u.user_value),
            "for each value",
        ],
        ["encrypting a ciphertext (Paillier)", _seconds(u.encrypt), "", f"{u.packed:.0f} values"],
        ["multiplying a ciphertext", _seconds(u.multiply), "", ""],
        ["decrypting a ciphertext", _seconds(u.decrypt), "", ""],
    ]
    rows += [
        ["a share, besides its values", _bytes(u.share_bytes), _bytes(u.chunk_bytes), "for each chunk"],
        ["what the data user receives about an owner", _bytes(u.statement_bytes), "", ""],
        ["a manifest", "", _bytes(u.feature_bytes), "for each feature"],
        ["", "", _bytes(u.blinded_bytes), "for each owner of a blinded study"],
    ]
    prices = Prices()
    return [
        "CPU time of one core, measured on one machine in one run, and sizes.",
        "",
        *table(["what", "each", "and", ""], rows),
        f"An hour of a core costs ${prices.core_hour}, a gigabyte that is sent ${prices.gigabyte_sent}, and",
        f"a gigabyte that is kept for a month ${prices.gigabyte_month}. Shares are kept for a day. These are",
        "round figures of public clouds, not offers.",
        "",
    ]


def _costs(units: Units) -> list[str]:
    lines: list[str] = []
    for kind in Kind:
        features = _FEATURES if kind is Kind.SKETCH else _FEATURES[:3]
        rows = [_cost(Study(owners, d, kind, units)) for d, owners in product(features, _OWNERS)]
        heads = [
            "d",
            "owners",
            "an owner sends",
            "an owner computes",
            "the proxy receives",
            "proxy, core hours",
            "data user, core hours",
            "US dollars",
            "limit",
        ]
        lines += [f"### {kind[0].upper()}{kind[1:]}", "", *table(heads, rows)]
    return lines


def _cost(study: Study) -> list[str]:
    most = max(WALLS, key=lambda wall: wall.used(study))
    return [
        f"{study.features:,}",
        f"{study.owners:,}",
        _bytes(study.owner_bytes),
        _seconds(study.owner_seconds),
        _bytes(study.owners * study.owner_bytes),
        _figure(study.proxy_seconds / 3600),
        _figure(study.user_seconds / 3600),
        _figure(study.dollars()),
        most.name if most.used(study) > 1 else "",
    ]


def _walls(units: Units) -> list[str]:
    rows = []
    for kind, regional in ((kind, regional) for kind in Kind for regional in (False, True)):
        features = _FEATURES if kind is Kind.SKETCH else _FEATURES[:3]
        for d in features:
            name = f"{kind}{', regional' if regional else ''}"
            rows.append([name, f"{d:,}", *_met(d, kind, units, regional)])
    heads = ["way", "d", "rule at", "which", "machine at", "which", "what would move it"]
    return table(heads, rows)


def _met(features: int, kind: Kind, units: Units, regional: bool) -> Iterator[str]:
    rule, machine = (
        first_wall(features, kind, units, is_rule=is_rule, regional=regional) for is_rule in (True, False)
    )
    for found in (rule, machine):
        yield "no limit" if found is None else f"{found[0] - 1:,}"
        yield "" if found is None else found[1].name
    yield "; ".join(dict.fromkeys(found[1].can_move for found in (rule, machine) if found is not None))


def _check(checked: Checked) -> list[str]:
    names = {
        "owner_seconds": "owner, seconds",
        "proxy_seconds": "proxy, seconds",
        "user_seconds": "data user, seconds",
        "owner_bytes": "owner, bytes",
        "user_bytes": "data user, bytes",
    }
    rows = [
        [f"{int(row['owners']):,}", *(f"{row[name] / row[f'predicted_{name}']:.2f}" for name in names)]
        for row in checked.rows
    ]
    return [
        f"Measured over predicted, for a joint study under pads with d = {FEATURES}. The unit costs come",
        "from other sizes: 300 shares of 500 values, and 60 shares of 50,000. The simulation has no HTTP, so",
        "the prediction here has no requests. Each simulation opens the sum, and fails if it is not the",
        "exact sum over all owners.",
        "",
        *table(["owners", *names.values()], rows),
    ]


def _seconds(value: float) -> str:
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:,.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def _bytes(value: float) -> str:
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} B"


def _figure(value: float) -> str:
    if value < 0.01:
        return "below 0.01"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
