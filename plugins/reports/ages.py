"""Old pairs and new ones: errors by age under the exact laws, and what becomes of the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.api import Claim, Curve, Figure, Panel, Part, Report, Table, hookimpl, labels, parts
from engine.measure import capacity, laws
from engine.measure.state import effective_rank, spectrum
from engine.measure.statistics import Estimate, estimate

if TYPE_CHECKING:
    import xarray as xr

# E|S^T k - v|^2 of the delta rule at beta = 1, d = 8, N = 64, by age, as derived by hand.
DERIVED = {0: 0.0, 1: 0.25, 2: 0.4687, 4: 0.8276, 8: 1.3127, 16: 1.7637, 63: 1.9994}
BEST = {4: 0.86, 8: 0.66, 16: 0.44, 32: 0.26, 64: 0.14}  # write strength by N, d = 8
AGES = (0, 4, 16, 63)


@dataclass(frozen=True)
class Answers:
    """What a solver answers to every key at the end, newest first, arrays (age, trial, value)."""

    read: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, part: Part, label: str) -> Answers:
        """Read them from a part."""
        read = part.run[f"probes/recall/{label}/read"].transpose("query", "trial", "value").values
        values = part.run["stream/values"].transpose("step", "trial", "value").values
        return cls(read[::-1], values[::-1])

    def error(self, weight: Any = 1.0) -> np.ndarray:
        """Return |read - w v|^2 (age, trial)."""
        weight = np.broadcast_to(weight, len(self.read))[:, None]
        return np.asarray(capacity.interference(self.read, self.values, weight) ** 2)

    def signal(self) -> np.ndarray:
        """Return the weight of a pair's own value in its answer (age, trial)."""
        return np.asarray(capacity.signal(self.read, self.values))


def coefficient(part: Part, label: str, name: str) -> float:
    """Return a constant coefficient of a solver."""
    return float(part.run[f"solvers/{label}/{name}"].values.flat[0])


def error_laws(part: Part) -> dict[str, np.ndarray]:
    """Return E|S^T k - v|^2 by age of every solver, exactly."""
    d, n = part.run["stream"].sizes["key"], part.run["stream"].sizes["step"]
    age = np.arange(n)
    gamma = coefficient(part, "decayed", "gamma")
    missing = (1 - laws.decayed_signal(gamma, age)) ** 2  # of the pair's own value
    return {
        "hebbian": np.full(n, laws.hebbian_error(n, d)),
        "decayed": missing + laws.decayed_interference(gamma, age, n, d),
        **{x: laws.delta_error(coefficient(part, x, "beta"), d, n) for x in DELTAS},
    }


def energy_laws(part: Part) -> dict[str, np.ndarray]:
    """Return E|S|^2 after every write of every solver, exactly."""
    d, n = part.run["stream"].sizes["key"], part.run["stream"].sizes["step"]
    written, gamma = np.arange(1, n + 1), coefficient(part, "decayed", "gamma")
    return {
        "hebbian": written.astype(float),
        "decayed": np.array([laws.decayed_energy(gamma, int(t)) for t in written]),
        **{x: laws.delta_energy(coefficient(part, x, "beta"), d, written) for x in DELTAS},
    }


DELTAS = ("delta", "delta_soft")


@dataclass(frozen=True)
class Ages(Report):
    """Error, signal and interference of stored pairs by age, energy and spectra of states."""

    def claims(self, run: xr.DataTree) -> Sequence[Claim]:
        """Return errors, energies and the best write strengths beside their laws."""
        whole, *_ = every = list(parts(run))
        found, law = [], error_laws(whole)
        for age, derived in DERIVED.items():
            seen = estimate(Answers.of(whole, "delta").error()[age])
            # Where nothing has been written since, an answer is right to rounding.
            within = max(3 * seen.se, 5e-5)
            what = f"E|S^T k - v|^2, delta, beta = 1, age {age}"
            found.append(Claim(what, seen.value, None, derived, within, "law, 3 se and rounding"))
        for label in ("hebbian", "decayed", "delta_soft"):
            for age in AGES:
                seen = estimate(Answers.of(whole, label).error()[age])
                what = f"E|S^T k - v|^2, {label}, age {age}"
                found.append(_law(what, seen, law[label][age]))
        d, n = whole.run["stream"].sizes["key"], whole.run["stream"].sizes["step"]
        gamma, decayed = coefficient(whole, "decayed", "gamma"), Answers.of(whole, "decayed")
        weight = laws.decayed_signal(gamma, np.arange(n))
        for age in AGES:
            seen = estimate(decayed.signal()[age])
            found.append(_law(f"signal, decayed, age {age}", seen, weight[age]))
            seen = estimate(decayed.error(weight)[age])
            expected = float(laws.decayed_interference(gamma, age, n, d))
            found.append(_law(f"interference, decayed, age {age}", seen, expected))
        for label, line in energy_laws(whole).items():
            for t in (8, n):
                seen = estimate(_energy(whole, label)[t - 1])
                found.append(_law(f"E|S|^2 after {t} pairs, {label}", seen, line[t - 1]))
        for (n, beta), part in _strengths(every).items():
            seen = estimate(Answers.of(part, "delta").error().mean(axis=0))
            what = f"mean error over all {n} pairs, delta, beta = {beta:g}"
            found.append(_law(what, seen, float(laws.delta_error(beta, d, n).mean())))
        for n, best in BEST.items():
            what = f"best beta of a single pass over {n} pairs"
            found.append(Claim(what, laws.delta_best(d, n), None, best, 0.005, "rounding"))
        return found

    def tables(self, run: xr.DataTree) -> Sequence[Table]:
        """Return what is left of the newest and the oldest pair."""
        whole, *_ = parts(run)
        rows = []
        for label in labels(run):
            answers, hits = Answers.of(whole, label), _recalled(whole, label)
            for age in AGES:
                weight, error = estimate(answers.signal()[age]), estimate(answers.error()[age])
                rows.append([
                    label, age, float(hits[age].mean()), weight.value, weight.se, error.value,
                    error.se, float(error_laws(whole)[label][age]),
                ])  # fmt: skip
        columns = ("solver", "age", "recalled", "signal", "se", "error", "se", "law of the error")
        return [Table("by_age", "Pairs by age, after 64 pairs of length 8", columns, rows)]

    def figures(self, run: xr.DataTree) -> Sequence[Figure]:
        """Return errors by age, signal and interference, energy, spectra, and write strengths."""
        whole, *_ = every = list(parts(run))
        solvers, age = labels(run), np.arange(whole.run["stream"].sizes["step"])
        law = error_laws(whole)
        errors, hits, sizes = [], [], []
        for label in solvers:
            errors += _marked(label, age, Answers.of(whole, label).error(), law[label])
            seen = estimate(_recalled(whole, label).T)
            hits.append(Curve(label, age, seen.value, seen.low, seen.high))
            line = energy_laws(whole)[label]
            sizes += _marked(label, age + 1, _energy(whole, label), line)
        x = "age of a pair, writes since its own"
        by_age = [
            Panel(x, "E|S^T k - v|^2", errors, "Error", MARKED, log="y", y_range=(0.1, 20)),
            Panel(x, "share recalled (nearest value is right)", hits, "Recall",
                  BANDS, levels=[(1 / age.size, "chance")], y_range=(-0.02, 1.03)),
        ]  # fmt: skip
        energy = Panel("pairs written", "E|S|^2, squared Frobenius norm", sizes, "", MARKED, "xy")
        ranks = []
        for label in solvers:
            seen = estimate(effective_rank(_states(whole, label)).T)
            ranks.append(Curve(label, age + 1, seen.value, seen.low, seen.high))
        rank = Panel(
            "pairs written", "effective rank of S", ranks, "", "bands: 95 % intervals", "x"
        )
        return [
            Figure("ages", "Error and recall of stored pairs by age.", by_age, columns=2),
            Figure("decayed", DECAYED, _decayed(whole), columns=2),
            Figure("strength", STRENGTH, [_strength_panel(every)]),
            Figure("energy", "Size and effective rank of the state.", [energy, rank], columns=2),
            Figure("spectra", SPECTRA, [_spectra(whole, x) for x in solvers], columns=2),
        ]


BANDS = "bands: 95 % intervals"
MARKED = "marks: simulated, 95 % intervals; lines: the laws"
DECAYED = "A decayed Hebbian memory: what an answer holds of its own pair, and of all others."
STRENGTH = "Mean error over all pairs of one pass; the best write strength falls with the load N/d."
SPECTRA = (
    "Singular values of the state along the stream, means over trials. A sum of all pairs grows "
    "for ever; a decayed one, and a rule that corrects, settle."
)


def _law(what: str, seen: Estimate, expected: float) -> Claim:
    return Claim(what, seen.value, None, float(expected), max(3 * seen.se, 1e-12), "law, 3 se")


def _marked(label: str, x: np.ndarray, simulated: np.ndarray, law: np.ndarray) -> list[Curve]:
    """Return every few points with intervals, and the law through them."""
    some = np.unique(np.geomspace(1, len(x), 22).round().astype(int)) - 1
    seen = estimate(simulated[some].T)
    marks = Curve("", x[some], seen.value, seen.low, seen.high, "points", label)
    return [marks, Curve(label, x, law)]


def _decayed(part: Part) -> list[Panel]:
    d, n = part.run["stream"].sizes["key"], part.run["stream"].sizes["step"]
    age, gamma = np.arange(n), coefficient(part, "decayed", "gamma")
    answers = Answers.of(part, "decayed")
    weight = laws.decayed_signal(gamma, age)
    others = laws.decayed_interference(gamma, age, n, d)
    x = "age of a pair, writes since its own"
    signal = _marked("signal", age, answers.signal(), weight)
    rest = _marked("interference", age, answers.error(weight), others)
    return [
        Panel(x, "weight of its own value", signal, f"gamma = {gamma:g}", MARKED,
              y_range=(-0.1, 1.1)),
        Panel(x, "E|answer - signal|^2", rest, "", MARKED, y_range=(0, None)),
    ]  # fmt: skip


def _strengths(every: Sequence[Part]) -> dict[tuple[int, float], Part]:
    """Return the parts that differ in the write strength, by pairs and strength."""
    name = "solvers.delta.beta"
    some = [part for part in every if name in part.settings]
    return {(part.settings["stream.steps"], part.settings[name]): part for part in some}


def _strength_panel(every: Sequence[Part]) -> Panel:
    some, curves = _strengths(every), []
    for n in sorted({n for n, _ in some}):
        mine = {beta: part for (m, beta), part in some.items() if m == n}
        d = next(iter(mine.values())).run["stream"].sizes["key"]
        found = [estimate(Answers.of(p, "delta").error().mean(axis=0)) for p in mine.values()]
        value, low, high = (
            np.array([getattr(e, x) for e in found]) for x in ("value", "low", "high")
        )
        name = f"N/d = {n / d:g}"
        curves.append(Curve("", list(mine), value, low, high, "points", name))
        fine = np.linspace(min(mine), max(mine), 80)
        curves.append(Curve(name, fine, [laws.delta_error(b, d, n).mean() for b in fine]))
    return Panel(
        "write strength beta", "mean E|S^T k - v|^2 over all pairs", curves, note=MARKED,
        levels=[(1.0, "of answering 0")], x_range=(0, None), y_range=(0, None),
    )  # fmt: skip


def _spectra(part: Part, label: str) -> Panel:
    values = np.asarray(spectrum(_states(part, label))).mean(axis=1)
    x, last = np.arange(1, len(values) + 1), values.shape[1] - 1
    curves = [
        Curve({0: "largest", last: "smallest"}.get(i, ""), x, values[:, i],
              look="line" if i in (0, last) else "thin")
        for i in range(last + 1)
    ]  # fmt: skip
    return Panel(
        "pairs written", "singular values of S", curves, label, log="xy", y_range=(0.01, 10)
    )


def _states(part: Part, label: str) -> np.ndarray:
    S = part.run[f"solvers/{label}/S"]
    return np.asarray(S.transpose("step", "trial", "key", "value").values)


def _energy(part: Part, label: str) -> np.ndarray:
    return np.asarray((_states(part, label) ** 2).sum((-2, -1)))


def _recalled(part: Part, label: str) -> np.ndarray:
    """Return which keys are recalled (age, trial)."""
    hit = part.run[f"probes/recall/{label}/recalled"].transpose("query", "trial").values
    return np.asarray(hit[::-1], dtype=float)


@hookimpl
def engine_reports() -> Mapping[str, type]:
    """Return the report on ages."""
    return {"ages": Ages}
