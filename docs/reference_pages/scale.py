"""`docs/scale.md`: what a study costs for up to ten million owners, from measured unit costs."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from textwrap import wrap

from dpdpca_lab.scale.checked import FEATURES, FIGURES, WIDE_FEATURES, Checked
from dpdpca_lab.scale.model import OF_A_REGION, Kind, Prices, Study, Units, most_published_to
from dpdpca_lab.scale.sizes import Sizes, sizes
from dpdpca_lab.scale.walls import WALLS, first_wall
from dpdpca_protocol.wire.http import COMPONENTS_LIMIT_BYTES
from dpdpca_user.planning.wide import FULL_UP_TO, LEAST_ROWS, MOST_ROWS
from dpdpca_user.planning.wide_chain import DEFAULT_COLUMNS
from reference_pages.markdown import table

MEASURED = Path(__file__).resolve().parents[1] / "scale" / "measured.json"

_OWNERS = (100, 1000, 10_000, 100_000, 1_000_000, 10_000_000)
_REGIONAL_FROM = 1_000_000
_WIDTH = 110
_FEATURES = (100, 1000, 10_000, 100_000)

_INTRODUCTION = f"""
# Up to internet scale, on paper

This page says what a study would cost with 100 to 10,000,000 owners and 100 to 100,000 features, and which
limit it would meet first. The figures come from a model: simple arithmetic with measured unit costs and with
the sizes of this version's messages (`dpdpca_lab.scale`). Nobody has run a study of ten million owners. A
simulation checks the model with up to 100,000 owners, each with real keys, a real share and a real signature.
Its results are below.

`dpdpca bench scale --owners 100000 --save docs/scale/measured.json` measures again. `make reference` then
writes this page anew.

Four ways are compared:

- **full matrix, pads**: a joint study, the default. An owner sends 1 + d + d(d + 1)/2 values.
- **full matrix, blinded**: the same, and each two owners share masks. The manifest names the owners.
- **full matrix, Paillier**: a joint study with `suite = "paillier"`.
- **sketch and lift, pads**: the last three rounds of a chain for many features. An owner sends a sketch of at
  most {MOST_ROWS:,} rows, then a lift of {DEFAULT_COLUMNS} columns of d values, then scores. The planner uses
  {MOST_ROWS:,} rows if there are very many records, as here, and {LEAST_ROWS} if there are few. Up to
  {FULL_UP_TO:,} features the planner always takes the full matrix, so those rows are only for comparison.

*Regional* proxies: each {OF_A_REGION:,} owners have a proxy of their own, which passes on one sum (under
Paillier, one product), and a proxy above them adds these sums. This is **not built**. The tables have one
proxy up to 100,000 owners, and regional proxies above.

Rounds for norms and means are left out, because they have at most d values.
"""

_WALLS_TEXT = f"""
## Where the first wall stands

*Rule at* is the largest number of owners that a number in this version allows. Such a number could be
changed. *Machine at* is the largest number for which machines are large enough. Both are rounded down to two
digits. "No limit" means: not up to ten million owners. "None" means: not even one owner.

With one proxy, the first rules are about lists that each owner reads: all parties that are enrolled at its
proxy, and before the scores the components of the lift with a sealed key for each owner.

A full matrix has one more limit, which stops no study. Owners get its components as one copy each, and all
copies together have at most {COMPONENTS_LIMIT_BYTES >> 20} MiB. So {most_published_to(100):,} owners can get
one component of 100 features, {most_published_to(1_000):,} one of 1,000, and {most_published_to(10_000):,}
one of 10,000. With more owners, only the data user gets the components.
"""

_COSTS_TEXT = """
## The cost of one study

- *An owner receives* manifests, the list of features if the manifests do not hold it, the list of all parties
  that are enrolled at its proxy, and the list of the owners in the study. Before the scores it also receives
  the components of the lift. What all owners of one proxy receive grows with the square of their number,
  because each receives lists of all.
- *An owner computes* is the work on its shares. The work on its records comes first, and is often more:
  reading, summing and mixing them. On two cores, one owner with 33,387 records of 22,684 sites takes 8 to
  12 s in each round of a chain, and with 33,333 records of 100,000 sites 52 to 68 s. This work does not
  depend on the number of owners. See [Performance](performance.md).
- *Limit* names the limit that the study exceeds most. If it is empty, the study is within all limits. Figures
  beyond a limit say what the study would cost without it.
"""

_REST = """
## What the model leaves out

- Failures, repeated requests, owners that come late, and owners' agents, which ask again and again.
- What owners fetch after a study, such as its result; and bytes of short answers, such as receipts.
- The distance between machines: all requests were measured over loopback.
- The growth of the database: an index of ten million rows is slower than one of a thousand.
- The time of the disk: the model counts the bytes that a proxy keeps, not the seconds that it writes.
- An owner's work on its records, and what its own machine and network cost.
"""


def page() -> str:
    checked = Checked.load(MEASURED)
    lines = [*_INTRODUCTION.strip().splitlines(), "", "## In short", "", *_in_short(checked.units)]
    lines += [*_WALLS_TEXT.strip().splitlines(), "", *_walls(checked.units)]
    lines += [*_COSTS_TEXT.strip().splitlines(), "", *_costs(checked.units)]
    lines += ["## Unit costs", "", *_units(checked.units)]
    lines += ["Bytes of messages, as this version makes them:", "", *_sizes(sizes())]
    lines += ["## The model against the simulation", "", *_check(checked)]
    return "\n".join([*lines, *_REST.strip().splitlines()])


def _in_short(units: Units) -> list[str]:
    few, many = (Study(10_000, d, Kind.SKETCH, units) for d in (1_000, 100_000))
    full = Study(10_000, 100_000, Kind.FULL, units)
    region = Study(10_000_000, 100_000, Kind.SKETCH, units, regional=True)
    rule = first_wall(100_000, Kind.SKETCH, units, is_rule=True)
    machine = first_wall(100_000, Kind.SKETCH, units, is_rule=False, regional=True)
    assert rule is not None
    assert machine is not None
    said = [
        f"A sketch of 10,000 owners with 100,000 features costs ${_figure(many.dollars())} in all its rounds."
        f" Each owner sends {_bytes(many.owner_bytes)} and receives {_bytes(many.told_bytes)}. What owners"
        f" receive is most of the bill: with 1,000 features it is still ${_figure(few.dollars())}.",
        "A full matrix of 100,000 features is out of reach for any number of owners: each would send"
        f" {_bytes(full.owner_bytes)}.",
        "With one proxy, a sketch of 100,000 features is possible up to"
        f" {_at_most(rule[0] - 1)} owners. The first limit is {rule[1].name}.",
        f"With regional proxies, machines are large enough for {_at_most(machine[0] - 1)} owners. The first"
        f" limit is {machine[1].name}. Ten million owners would cost ${_figure(region.dollars())}.",
    ]
    return [
        line for each in said for line in wrap(each, _WIDTH, initial_indent="- ", subsequent_indent="  ")
    ] + [""]


def _units(u: Units) -> list[str]:
    rows = [
        ["an owner's share under pads", _seconds(u.owner_share), _seconds(u.owner_value), "for each value"],
        ["masks, for each other owner", _seconds(u.pair_share), _seconds(u.pair_value), "for each value"],
        [
            "the proxy's checks and sums of a share",
            _seconds(u.proxy_share),
            _seconds(u.proxy_value),
            "for each value",
        ],
        ["a request that brings a chunk", _seconds(u.request), _seconds(u.request_byte), "for each byte"],
        ["a short answer of the proxy", _seconds(u.answer), "", ""],
        ["a list that the proxy makes", "", _seconds(u.list_byte), "for each byte"],
        ["what the proxy sends as it is kept", "", _seconds(u.file_byte), "for each byte"],
        [
            "the data user's opening of a share",
            _seconds(u.user_share),
            _seconds(u.user_value),
            "for each value",
        ],
        ["encrypting a ciphertext (Paillier)", _seconds(u.encrypt), "", ""],
        ["multiplying a ciphertext", _seconds(u.multiply), "", ""],
        ["decrypting a ciphertext", _seconds(u.decrypt), "", ""],
    ]
    prices = Prices()
    return [
        "CPU time of one core, measured in one run on a virtual machine that did other work too.",
        "",
        *table(["what", "each", "and", ""], rows),
        f"An hour of a core costs ${prices.core_hour}, a gigabyte that is sent ${prices.gigabyte_sent}, and",
        f"a gigabyte that is kept for a month ${prices.gigabyte_month}. Shares are kept for a day. These are",
        "round figures of public clouds, not offers.",
        "",
    ]


def _sizes(s: Sizes) -> list[str]:
    rows = [
        ["a share under pads, besides its values", _bytes(s.share), _bytes(s.chunk + s.digest), "a chunk"],
        ["what the data user receives about an owner", _bytes(s.told), _bytes(s.digest), "a chunk"],
        [f"a Paillier ciphertext of {s.packed:.0f} values", _bytes(s.ciphertext), "", ""],
        ["a manifest", _bytes(s.manifest), _bytes(s.feature), "a feature"],
        ["", "", _bytes(s.blinded), "an owner of a blinded study"],
        ["the list of enrolled parties", "", _bytes(s.party), "a party"],
        ["the same with proofs, for blinded studies", "", _bytes(s.proved), "a party"],
        ["the list of the owners in a study", "", _bytes(s.seen), "an owner"],
        ["published components of a lift", "", _bytes(s.key), "an owner"],
    ]
    return table(["what", "each", "and", "for"], rows)


def _costs(units: Units) -> list[str]:
    heads = [
        "d",
        "owners",
        "proxies",
        "an owner sends",
        "an owner receives",
        "an owner computes",
        "proxies receive",
        "proxies send",
        "proxies, core hours",
        "data user, core hours",
        "US dollars",
        "limit",
    ]
    lines: list[str] = []
    for kind in Kind:
        studies = (
            Study(owners, d, kind, units, owners >= _REGIONAL_FROM)
            for d, owners in product(_FEATURES, _OWNERS)
        )
        lines += [f"### {kind[0].upper()}{kind[1:]}", "", *table(heads, map(_cost, studies))]
    return lines


def _cost(study: Study) -> list[str]:
    most = max(WALLS, key=lambda wall: wall.used(study))
    return [
        f"{study.features:,}",
        f"{study.owners:,}",
        f"{study.proxies:,}",
        _bytes(study.owner_bytes),
        _bytes(study.told_bytes),
        _seconds(study.owner_seconds),
        _bytes(study.owners * study.owner_bytes),
        _bytes(study.sent_bytes),
        _figure(study.proxy_seconds / 3600),
        _figure(study.user_seconds / 3600),
        _figure(study.dollars()),
        most.name if most.used(study) > 1 else "",
    ]


def _walls(units: Units) -> list[str]:
    """One row for all numbers of features for which a way meets the same limits."""
    found: dict[tuple[str, ...], list[str]] = {}
    for kind, regional, d in product(Kind, (False, True), _FEATURES):
        name = f"{kind}{', regional' if regional else ''}"
        found.setdefault((name, *_met(d, kind, units, regional)), []).append(f"{d:,}")
    heads = ["way", "d", "rule at", "which", "machine at", "which", "what would move it"]
    return table(heads, ([name, "; ".join(numbers), *cells] for (name, *cells), numbers in found.items()))


def _met(features: int, kind: Kind, units: Units, regional: bool) -> Iterator[str]:
    rule, machine = (
        first_wall(features, kind, units, is_rule=is_rule, regional=regional) for is_rule in (True, False)
    )
    for found in (rule, machine):
        yield "no limit" if found is None else _at_most(found[0] - 1)
        yield "" if found is None else found[1].name
    yield "; ".join(dict.fromkeys(found[1].can_move for found in (rule, machine) if found is not None))


def _at_most(owners: int) -> str:
    """A number of owners, rounded down to two digits."""
    unit = 10 ** max(0, len(str(owners)) - 2)
    return f"{owners // unit * unit:,}" if owners else "none"


def _check(checked: Checked) -> list[str]:
    rows, farthest = [], 0.0
    for row in checked.rows:
        ratios = row.ratios(checked.units)
        farthest = max(farthest, *(abs(ratio - 1) for ratio in ratios.values()))
        way = f"{row.kind}{', regional' if row.regional else ''}, d = {row.features}"
        rows.append([way, f"{row.owners:,}", *(f"{ratios[name]:.2f}" for name in FIGURES)])
    said = (
        f"Measured over predicted, for joint studies under pads with d = {FEATURES}, and for the rounds of a"
        f" sketch with d = {WIDE_FEATURES} and two regional proxies. The unit costs come from other sizes:"
        " 300 shares of 500 values, and 60 shares of 50,000. The simulation has no HTTP, so the prediction"
        " here has no requests. Each simulation opens the sum, and fails if it is not the exact sum over all"
        f" owners. No figure is further than {farthest:.0%} from its prediction."
    )
    return [
        *wrap(said, _WIDTH),
        "",
        *table(
            [
                "way",
                "owners",
                "owner, seconds",
                "proxies, seconds",
                "data user, seconds",
                "owner, bytes",
                "data user, bytes",
            ],
            rows,
        ),
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
