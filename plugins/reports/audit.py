"""What every memory keeps, what it costs, and what it loses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.api import Claim, Curve, Figure, Panel, Part, Report, Table, hookimpl, labels, parts
from engine.measure import probed
from engine.measure.runs import rule_of
from engine.measure.state import costs
from engine.measure.statistics import estimate

if TYPE_CHECKING:
    import xarray as xr

# Counted by hand from the rules: numbers kept after t pairs, multiply-adds of a write and a read.
BY_HAND: Mapping[str, Any] = {
    "delta": (lambda d, v, t: d * v, lambda d, v, t: 3 * d * v),
    "linear_attention": (lambda d, v, t: d * v + d, lambda d, v, t: 2 * d * v),
    "titans": (lambda d, v, t: 2 * d * v, lambda d, v, t: 5 * d * v),
    "rls": (lambda d, v, t: d * d + d * v, lambda d, v, t: 3 * d * d + 3 * d * v),
    "softmax_attention": (lambda d, v, t: t * (d + v), lambda d, v, t: t * (d + v)),
}
STORAGE = ("delta", "linear_attention", "rls_10", "mesa_10", "titans_8")
COMPUTE = ("delta", "linear_attention_24", "rls_10", "titans_10")
NAMED = ("delta", "longhorn", "gated_delta", "kda", "titans", "softmax_attention")  # of many
MATCHED = 0.07  # how far apart what is compared as equal may be
FAMILIES = {
    r"\bt\b": "rows, one a pair", "levels": "levels", "dk\\*dk": "second moments",
    "hidden": "a network", "": "a matrix",
}  # fmt: skip


def kept(part: Part, label: str) -> int:
    """Return how many numbers the recorded state holds per trial after the last pair."""
    options = part.run.attrs["scenario"]["resolved"]["solvers"][label]
    apart = {"prediction", "output", "diverged_at", "rows", *options}  # not of the state
    solver = part.run[f"solvers/{label}"].to_dataset(inherit=False)
    return sum(x.size // x.sizes["trial"] for n, x in solver.data_vars.items() if n not in apart)


def work(part: Part, label: str) -> float:
    """Return the multiply-adds of the last write and one read after it, by the card."""
    spent = costs(part.run, label)["multiply_adds"].values
    return float(spent[-1] - (spent[-2] if len(spent) > 1 else 0))


def recall(part: Part, label: str) -> np.ndarray:
    """Return the share of keys recalled, of each trial."""
    return np.asarray(probed.recall(part.run, "recall", label))


def pairs(part: Part) -> int:
    """Return the number of pairs written."""
    return int(part.run["stream"].sizes["step"])


def family(part: Part, label: str) -> str:
    """Return what a solver's state is made of, by its card."""
    formula = rule_of(part.run[f"solvers/{label}"].to_dataset()).card.retained
    return next(name for pattern, name in FAMILIES.items() if re.search(pattern, formula))


@dataclass(frozen=True)
class Audit(Report):
    """State size, costs and losses of every solver; recall at equal storage and at equal work."""

    def claims(self, run: xr.DataTree) -> Sequence[Claim]:
        """Return recorded states beside what the cards and hand counts say of them."""
        every = list(parts(run))
        last, found = every[-1], []
        d, v = (last.run["stream"].sizes[x] for x in ("key", "value"))
        for label in labels(run):
            said = float(costs(last.run, label)["numbers"][-1])
            what = f"numbers kept after {pairs(last)} pairs, {label}"
            found.append(Claim(what, kept(last, label), None, said, 0, "the card, counted"))
        for label, (numbers, per_token) in BY_HAND.items():
            for part in (every[0], last):
                t = pairs(part)
                held, spent = float(numbers(d, v, t)), float(per_token(d, v, t))
                what = f"by hand, numbers after {t} pairs, {label}"
                found.append(Claim(what, kept(part, label), None, held, 0, "the rule"))
                what = f"by hand, multiply-adds of pair {t}, {label}"
                found.append(Claim(what, work(part, label), None, spent, 0, "the rule"))
        for label in STORAGE[1:]:
            equal = kept(last, "delta")
            what = f"equal storage, {label}: numbers"
            found.append(Claim(what, kept(last, label), None, equal, MATCHED * equal, "to 7 %"))
        for label in COMPUTE[1:]:
            equal = work(last, "delta")
            what = f"equal work, {label}: multiply-adds"
            found.append(Claim(what, work(last, label), None, equal, MATCHED * equal, "to 7 %"))
        for part in every:
            n = pairs(part)
            seen = estimate(_errors(part, "rls"))
            # Its ridge, .001, is small beside the eigenvalues of the keys' Gram matrix beyond d.
            if n > d:
                what, law = f"mean |read - v|^2 of exact least squares, N = {n}", 1 - d / n
                found.append(Claim(what, seen.value, None, law, 3 * seen.se, "1 - d/N, 3 se"))
        return found

    def tables(self, run: xr.DataTree) -> Sequence[Table]:
        """Return the audit of every solver, and the two comparisons."""
        *_, last = every = list(parts(run))
        rows = []
        for label in _names(run):
            card = rule_of(last.run[f"solvers/{label}"].to_dataset()).card
            rows.append([
                label, kept(last, label), card.retained, card.write, card.query,
                round(work(last, label)), card.history, card.lost,
            ])  # fmt: skip
        n = pairs(last)
        audit = Table(
            "audit", f"Every solver, d = 16; dk, dv: key and value, t: pairs written, here {n}",
            ("solver", "numbers kept", "formula", "write", "query", "multiply-adds a token",
             "weights of the past", "what is lost"),
            rows,
        )  # fmt: skip
        return [audit, *(_comparison(every, *one) for one in COMPARISONS)]

    def figures(self, run: xr.DataTree) -> Sequence[Figure]:
        """Return the map of solvers, growth with the stream, and the two comparisons."""
        *_, last = every = list(parts(run))
        n = pairs(last)
        where = Panel(
            "multiply-adds per token, one write and one read", "numbers kept", _points(run, last),
            f"after {n} pairs, d = 16", log="xy", y_range=(120, 8000),
        )  # fmt: skip
        grown = [
            Panel("pairs written", what, [
                Curve(label, np.arange(1, n + 1), values(costs(last.run, label)))
                for label in ("softmax_attention", "ridge", "least_squares", "rls", "delta")
            ], log="xy")
            for what, values in (
                ("numbers kept", lambda x: x["numbers"].values),
                ("multiply-adds of a token", lambda x: np.diff(x["multiply_adds"], prepend=0.0)),
            )
        ]  # fmt: skip
        compared = [
            _recalls(every, title, labels, rows) for _, title, labels, _, rows in COMPARISONS
        ]
        return [
            Figure("map", MAP, [where]),
            Figure("growth", "What is kept and done while the stream grows.", grown, columns=2),
            Figure("recall", RECALL, compared, columns=2),
        ]


COMPARISONS = (
    ("storage", "equal storage: 256 numbers", STORAGE, kept, 8),
    ("compute", "equal work: 768 multiply-adds a token", COMPUTE, work, 24),
)
MAP = (
    "Retained state against work per token, log axes. Solvers that lie within 7 % of one another "
    "share a mark and a label. Marks by what the state is made of: a matrix, second moments, "
    "levels, rows, a network."
)
RECALL = (
    "Recall at equal storage and at equal work. Numbers beside a name: key dimensions after a "
    "projection. A cache that keeps its last pairs and reads them without fault is the reference."
)


def _names(run: xr.DataTree) -> list[str]:
    """Return the labels that are solvers as they are, not behind a view for a comparison."""
    solvers = run.attrs["scenario"]["resolved"]["solvers"]
    return sorted(label for label, options in solvers.items() if options["solver"] == label)


def _points(run: xr.DataTree, part: Part) -> list[Curve]:
    """Return a mark for every place of the map that solvers are at."""
    places: dict[tuple[str, int, float], list[str]] = {}
    for label in _names(run):
        kind, numbers, spent = family(part, label), kept(part, label), work(part, label)
        here = kind, numbers, spent
        near = next((at for at in places if _apart(at, here) < MATCHED), here)
        places.setdefault(near, []).append(label)
    curves = []
    for (kind, numbers, spent), some in places.items():
        names = sorted(some, key=lambda x: (x not in NAMED, x))
        text = ", ".join(names[:2]) + (f" + {len(names) - 2}" if names[2:] else "")
        curves.append(Curve(text, [spent], [numbers], look="points", like=kind))
    return curves


def _apart(a: tuple[str, int, float], b: tuple[str, int, float]) -> float:
    """Return how far two places of the map are apart, in shares; those of two families always."""
    if a[0] != b[0]:
        return np.inf
    return float(np.abs(np.log(np.divide(a[1:], b[1:]))).max())


def _errors(part: Part, label: str) -> np.ndarray:
    """Return the mean squared error of what is read at every key, of each trial."""
    read = part.run[f"probes/recall/{label}/read"].transpose("query", "trial", "value").values
    values = part.run["stream/values"].transpose("step", "trial", "value").values
    return np.asarray(((read - values) ** 2).sum(-1).mean(axis=0))


def _comparison(
    every: Sequence[Part], name: str, title: str, labels: Sequence[str], measure: Any, rows: int
) -> Table:
    table = []
    for label in labels:
        found = [estimate(recall(part, label)) for part in every]
        table.append(
            [label, measure(every[-1], label), *(x for e in found for x in (e.value, e.se))]
        )
    counts = [pairs(part) for part in every]
    cache = [min(1.0, rows / n) for n in counts]
    table.append(
        [f"the last {rows} pairs", 32 * rows, *(x for share in cache for x in (share, 0.0))]
    )
    columns = ["solver", "numbers" if measure is kept else "multiply-adds"]
    columns += [x for n in counts for x in (f"recall, N = {n}", "se")]
    return Table(name, f"Recall at {title}", columns, table)


def _plain(label: str) -> str:
    """Return the solver of a label: the same one has one colour.

    >>> _plain("rls_10"), _plain("delta")
    ('rls', 'delta')
    """
    return re.sub(r"_\d+$", "", label)


def _recalls(every: Sequence[Part], title: str, labels: Sequence[str], rows: int) -> Panel:
    counts, curves = np.array([pairs(part) for part in every]), []
    for label in labels:
        found = [estimate(recall(part, label)) for part in every]
        value, se = (np.array([getattr(e, x) for e in found]) for x in ("value", "se"))
        curves.append(
            Curve(label, counts, value, value - 2 * se, value + 2 * se, "marks", _plain(label))
        )
    fine = np.geomspace(counts[0], counts[-1], 60)
    cache = np.minimum(1.0, rows / fine)
    curves.append(Curve(f"the last {rows} pairs", fine, cache, like="cache"))
    curves.append(Curve("", fine, 1 / fine, look="thin"))
    return Panel(
        "pairs written, N", "share recalled (nearest value is right)", curves, title,
        "bands: 2 standard errors; thin: chance, 1/N", log="x", y_range=(-0.02, 1.03),
    )  # fmt: skip


@hookimpl
def engine_reports() -> Mapping[str, type]:
    """Return the audit."""
    return {"audit": Audit}
