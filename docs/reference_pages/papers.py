"""`docs/papers.md`: what the papers show, what we ran, and what came out; and the same for peers.

The texts are those of the declared experiments and peers, and the figures those in `docs/papers`.
"""

import json
from pathlib import Path
from typing import Any

from dpdpca_lab.papers.declared import Experiment, experiments
from dpdpca_lab.papers.tables import as_markdown, from_csv
from dpdpca_lab.peers.declared import LIBRARIES, MAKE, PEERS, Peer
from reference_pages.markdown import plain, table

RESULTS = Path(__file__).resolve().parents[1] / "papers"
_LOCKS = RESULTS.parents[1] / "requirements"
NOT_YET = "not yet run in full"

_INTRODUCTION = """
# The papers, run again

DPDPCA stands on five papers. This page shows their experiments again: what the paper shows, what we ran, and
what came out. `dpdpca experiments list` names all experiments, and `dpdpca experiments run NAME` runs one. It
writes a table and a plot, goes on where it stopped, and never measures a point twice. `--quick` shows in
seconds that an experiment works; its figures mean nothing. `make experiments` runs everything in full and
writes this page anew. At the end, two [comparisons with peers](#peers) show what others offer today.

Every ε and δ here is about one replaced record, with n public (see [claims.md](claims.md)). Most papers
scale their records by norms, ranges or means of the data itself. This reads the data and is not private. We
do the same where the paper does, and say so. The stated ε then takes these values as public. The exact
samplers draw all noise on matrices. Shuffles, splits and synthetic sets have fixed seeds, which are their
names; noise has no seed. A table has the mean and the standard deviation over all repetitions. The linked CSV
file has all points and measures.

The line "chain of studies" is a chain of three owners, with real rounds, integers and noise, and without
encryption. Its bounds are −1 and 1 for each column, because no row is longer than 1. In a picture with public
bounds, it has those.

## How to read a verdict

- **agrees**: the same order and direction, and values within the spread where the paper prints values.
- **differs**: another order or another value, with the reason that we can show.
- **cannot be**: what is missing.
- **compared**: a comparison with peers, where no paper has values.
- **open**: not yet run in full.

In the column "real ε", "as claimed" means that our proof gives the ε on the axis. A published mechanism has
the factor between the ε that its noise really gives and the ε that its paper claims, at the same δ. "none"
means that no ε holds. In the plots, ours and published noise have solid lines, methods without a guarantee
have dashed lines, and the random subspace and the result without noise have thin grey lines.
"""

_PEERS = f"""
## Peers

What others offer today for private components, on the same rows, with the same ε, δ and k. Foreign libraries
run in environments of their own (`{MAKE}`), each as a process with a time limit for each fit, and not with
`--quick`. Where an environment is missing, the table says "not installed". Our own lines always run.
`dpdpca experiments run peers` runs all comparisons. What is said about other people's code is as we measured,
computed or read it, with the versions in the table. In the plots, a claim that does not hold has a dashed
line.
"""

_REST = """
## What could not be had

- ALOI, Million Song, Census-Income, and the full sets of Facebook, Covertype, GISETTE, Sensorless and
  Localization. Where another set stands in, the experiment says so.
- Figures 3a and 4a of Chaudhuri et al. (Census-Income and Localization). Localization has 44 features only if
  the label is one of them, which explains the 100 % of their table 2.
- A chain of studies for the experiments of Chaudhuri et al.: they do not centre, and a chain finds components
  about the mean.
- Grids, splits, penalties and pairs of classes that the papers do not state, and values that only a picture
  shows.

## Corrections

- **Sensitivity of AG.** Gaussian noise needs the Frobenius norm: √2 on R and up to 4 on centred S, where the
  papers take 1. [mechanisms.md](mechanisms.md) states the real ε.
- **SN** has no guarantee. Its authors retracted it in 2017 ([mechanisms.md](mechanisms.md)).
- **MOD-SULQ** keeps its claim, with far more noise than it needs.
- **Theorem 8 of Chaudhuri et al.** puts 1 − φ where its packing lemma has 1 − φ². The order is the same.
- **Table 1 of Chaudhuri et al.** is headed q_F/‖A‖_F, and its values are q_F/tr A.
- **Table 2 of Huang et al.** compares spectral norms with the scale of one entry.
- **PCA-DPSVM** and all machines on raw projections are not private, whatever their noise.
"""


def page() -> str:
    declared = sorted(experiments(), key=lambda experiment: (experiment.paper, _natural(experiment)))
    lines = [*_INTRODUCTION.strip().splitlines(), "", "## At a glance", ""]
    lines += table(["paper", "item", "experiment", "what", "verdict", "because"], map(_glance, declared))
    for experiment in declared:
        if experiment.group == "papers":
            lines += _section(experiment)
    lines += [*_PEERS.strip().splitlines(), "", *_peers()]
    for experiment in declared:
        if experiment.group == "peers":
            lines += _section(experiment)
    return "\n".join([*lines, *_REST.strip().splitlines()])


def _natural(experiment: Experiment) -> tuple[str, int, str]:
    kind, number = experiment.item.split()[:2]
    return kind, int("".join(filter(str.isdigit, number)) or 0), number


def _peers() -> list[str]:
    heads = ["peer", "version", "neighbours", "claim", "how we compare"]
    lines = table(heads, ([plain(text) for text in _facts_of(peer)] for peer in PEERS))
    for peer in PEERS:
        if peer.known:
            lines += [f"{plain(peer.name)}:", "", *(f"- {plain(text)}." for text in peer.known), ""]
    return lines


def _facts_of(peer: Peer) -> tuple[str, ...]:
    return peer.name, _locked(peer.package), peer.relation, peer.claim, peer.ran


def _locked(name: str) -> str:
    """The version of a library in its lock; a dash for what has none."""
    if not name:
        return "–"
    package = LIBRARIES[name].package
    start, lock = f"{package}==", _LOCKS / f"peers-{package}.txt"
    lines = lock.read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix(start).split()[0] for line in lines if line.startswith(start))


def _glance(experiment: Experiment) -> list[str]:
    verdict = experiment.verdict
    anchor = f"[`{experiment.name}`](#{experiment.name})"
    because = plain(verdict.because) or NOT_YET
    return [
        plain(experiment.paper),
        experiment.item,
        anchor,
        plain(experiment.shows),
        verdict.result,
        because,
    ]


def _section(experiment: Experiment) -> list[str]:
    lines = [
        f"## {experiment.name}",
        "",
        f"{plain(experiment.paper)}, {experiment.item}: {plain(experiment.shows)}.",
        "",
    ]
    about = "The paper shows." if experiment.group == "papers" else "What it compares."
    lines += [f"**{about}** {plain(experiment.reported)}", "", "**We ran:**", ""]
    lines += [f"- {plain(text)}." for text in experiment.ran]
    csv, facts = (RESULTS / f"{experiment.name}{ending}" for ending in (".csv", ".json"))
    if not csv.is_file():
        return [*lines, "", f"**What came out.** {NOT_YET.capitalize()}.", "", *_command(experiment), ""]
    body = json.loads(facts.read_text(encoding="utf-8"))
    lines += [f"- {plain(text)}." for text in _sizes(body)]
    lines += ["", f"![{plain(experiment.shows)}](papers/{experiment.name}.svg)", "", "**What came out.**", ""]
    lines += as_markdown(experiment, from_csv(csv.read_text(encoding="utf-8"))).splitlines()
    verdict = experiment.verdict
    lines += ["", f"All points: [{csv.name}](papers/{csv.name}).", ""]
    if verdict.because:
        lines += [f"**Verdict: {verdict.result}.** {plain(verdict.because)}", ""]
    return [*lines, *_command(experiment, body), ""]


def _sizes(body: dict[str, Any]) -> list[str]:
    return [
        f"{title}: n = {panel['n']:,}, d = {panel['d']}, k = {panel['k']}, from {panel['origin']}"
        for title, panel in body["panels"].items()
    ]


def _command(experiment: Experiment, body: dict[str, Any] | None = None) -> list[str]:
    ours = " of ours" if experiment.measure == "peers" else ""
    took = (
        f" ({body['cpu_minutes']} minutes of processor time{ours}, version {body['version']})" if body else ""
    )
    return [f"Command: `dpdpca experiments run {experiment.name}`{took}."]
