"""Keys whose values change: who returns the latest, and why momentum ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.api import Claim, Curve, Figure, Panel, Part, Report, Table, hookimpl, labels, parts
from engine.measure import laws, probed
from engine.measure.statistics import chance, estimate

if TYPE_CHECKING:
    import xarray as xr

PUBLISHED = {1: 1.0, 2: 0.927, 4: 0.185, 8: 0.1}  # recall of Titans by bindings per key
HITS = {1: 400, 2: 371, 4: 74, 8: 40}  # of 400, on the same streams
NORMS = {1: (3.83, 0.005), 2: (12.5, 0.05), 4: (101.0, 0.5), 8: (2863.0, 0.5)}  # and rounding
STABLE = {1: 400, 2: 400, 4: 395, 8: 398}  # eta = .5: of 400, by a plain loop (test_rebinding.py)
GAPS = np.arange(1, 61)


def recall(part: Part, label: str) -> np.ndarray:
    """Return the share of keys that answer with their latest value, in each trial."""
    return np.asarray(probed.recall(part.run, "recall", label))


def largest(part: Part, label: str) -> float:
    """Return the largest norm of an answer to a key; values have norm 1."""
    read = part.run[f"probes/recall/{label}/read"].values
    return float(np.linalg.norm(read, axis=-1).max())


def settings(part: Part, label: str) -> dict[str, float]:
    """Return the coefficients of a Titans solver."""
    solver = part.run[f"solvers/{label}"]
    return {name: float(solver[name].values.flat[0]) for name in ("theta", "eta", "alpha")}


def grown(part: Part, label: str) -> float:
    """Return the factor per visit by which errors along keys that return in rotation grow.

    Facts do not change, so differences d of the errors from visit to visit follow
    d[r + 2] = p d[r + 1] + q d[r], with the eigenvalues of a turn as roots of x^2 - p x - q.
    """
    solver, stream = part.run[f"solvers/{label}"], part.run["stream"]
    error = (solver["prediction"] - stream["values"]).transpose("step", "trial", "value").values
    gap = part.settings["stream.entries"]
    visits = len(error) // gap
    error = error[: visits * gap].reshape(visits, gap, -1)
    change = np.diff(error[:10].reshape(min(visits, 10), -1), axis=0)
    before = np.stack([change[1:-1].ravel(), change[:-2].ravel()], axis=1)
    p, q = np.linalg.lstsq(before, change[2:].ravel(), rcond=0.0)[0]
    return float(np.abs(np.roots([1.0, -p, -q])).max())


@dataclass(frozen=True)
class Rebinding(Report):
    """Recall of the latest of R values per key, and the law of stability behind it."""

    def claims(self, run: xr.DataTree) -> Sequence[Claim]:
        """Return recall and the largest readout on the published streams, and the law."""
        found = []
        for R, part in _bindings(run).items():
            ours = float(recall(part, "titans").mean())
            what = f"recall of the latest of {R}, titans"
            why = "the same streams: of 400 keys"
            found.append(Claim(what, ours, PUBLISHED[R], HITS[R] / 400, 1e-9, why))
        for R, part in _bindings(run).items():
            norm, rounding = NORMS[R]
            what = f"largest readout norm, R = {R}, titans"
            found.append(Claim(what, largest(part, "titans"), None, norm, rounding, "rounding"))
        for R, part in _bindings(run).items():
            ours, what = (float(recall(part, x).mean()) for x in ("delta", "titans_stable"))
            why = "orthonormal keys, beta 1: the old value is taken back"
            found.append(Claim(f"recall of the latest of {R}, delta", ours, None, 1.0, 1e-9, why))
            found.append(Claim(
                f"recall of the latest of {R}, titans, eta = .5", what, None, STABLE[R] / 400,
                1e-9, "a plain loop on the same streams",
            ))  # fmt: skip
        first = next(iter(_bindings(run).values()))
        law = settings(first, "titans")
        unstable = [n for n in GAPS if laws.titans_growth(int(n), **law) > 1]
        growth = laws.titans_growth(8, **law)
        found.append(
            Claim("growth per visit at gap 8, law", growth, None, 2.901578, 5e-7, "rounding")
        )
        why = "law, where simulated growth crosses 1"
        found.append(Claim("first unstable gap", unstable[0], None, 4, 0.0, why))
        found.append(Claim("last unstable gap", unstable[-1], None, 33, 0.0, why))
        safe = laws.titans_bound(law["eta"], law["alpha"])
        found.append(
            Claim("2 theta that is safe at every gap", safe, None, 0.4238, 5e-5, "rounding")
        )
        for n, part in _rotations(run).items():
            # A fit to at most ten visits: roundings are relative to the first of them.
            claim = Claim(
                f"growth per visit at gap {n}, simulated", grown(part, "titans"), None,
                laws.titans_growth(n, **law), 1e-6, "law of stability",
            )  # fmt: skip
            found.append(claim)
        return found

    def tables(self, run: xr.DataTree) -> Sequence[Table]:
        """Return recall and the largest readout of every solver."""
        by_count = _bindings(run)
        rows = [
            [label, *(float(recall(p, label).mean()) for p in by_count.values()),
             *(largest(p, label) for p in by_count.values())]
            for label in labels(run)
        ]  # fmt: skip
        columns = [f"recall, R = {R}" for R in by_count]
        columns += [f"largest readout, R = {R}" for R in by_count]
        title = "Recall of the latest of R values, and the largest answer; values have norm 1"
        return [Table("solvers", title, ["solver", *columns], rows)]

    def figures(self, run: xr.DataTree) -> Sequence[Figure]:
        """Return recall and readouts against R, and growth against the gap."""
        by_count = _bindings(run)
        counts = list(by_count)
        shares, norms = [], []
        for label in labels(run):
            found = [estimate(recall(part, label)) for part in by_count.values()]
            value, se = (np.array([getattr(e, f) for e in found]) for f in ("value", "se"))
            low, high = np.clip([value - 2 * se, value + 2 * se], 0, 1)
            shares.append(Curve(label, counts, value, low, high, look="marks"))
            sizes = [largest(part, label) for part in by_count.values()]
            norms.append(Curve(label, counts, sizes, look="marks"))
        luck = chance(32, 400).value
        x = "values per key, R"
        recalled = Panel(
            x, "share whose latest value is recalled", shares, levels=[(luck, "chance")],
            note="bands: 2 standard errors over trials", y_range=(-0.02, 1.03),
        )  # fmt: skip
        sizes = Panel(x, "largest norm of an answer (of a value: 1)", norms, log="y")
        return [
            Figure("recall", "Recall of the latest value, and the size of answers.",
                   [recalled, sizes], columns=2),
            Figure("stability", STABILITY, [self._growth(run), self._bound(run)], columns=2),
        ]  # fmt: skip

    def _growth(self, run: xr.DataTree) -> Panel:
        rotations, curves = _rotations(run), []
        for label in ("titans", "titans_stable"):
            law = settings(next(iter(rotations.values())), label)
            line = [laws.titans_growth(int(n), **law) for n in GAPS]
            name = f"eta = {law['eta']:g}"
            if label == "titans":
                seen = [grown(part, label) for part in rotations.values()]
                curves.append(Curve(name, list(rotations), seen, look="points"))
                curves.append(Curve("", GAPS, line, look="law", like=name))
            else:
                curves.append(Curve(name, GAPS, line))
        return Panel(
            "gap, steps from one visit of a key to the next",
            "growth of an error per visit", curves, title="theta = .5, alpha = .1",
            log="x", levels=[(1.0, "stable below")], y_range=(0, None),
            note="marks: simulated; lines: the law",
        )  # fmt: skip

    def _bound(self, run: xr.DataTree) -> Panel:
        law = settings(next(iter(_bindings(run).values())), "titans")
        curves = []
        for eta in (0.0, 0.5, 0.9):
            bound = laws.titans_bound(eta, law["alpha"], GAPS)
            curves.append(Curve(f"eta = {eta:g}", GAPS, bound))
        setting, safe = 2 * law["theta"], laws.titans_bound(law["eta"], law["alpha"])
        bad = [n for n in GAPS if laws.titans_bound(law["eta"], law["alpha"], n) < setting]
        # The setting itself, where its own line says that it is unstable.
        curves.append(Curve("unstable", bad, np.full(len(bad), setting), look="points"))
        return Panel(
            "gap, steps from one visit of a key to the next", "largest stable 2 theta", curves,
            title="stable below each line; alpha = .1", log="xy", y_range=(0.2, 20),
            levels=[(setting, "published setting"), (safe, "safe at every gap")],
            note=f"marks: unstable at the published setting; safe: 2 theta < {safe:.4f}",
        )  # fmt: skip


STABILITY = (
    "Momentum makes a key that returns after 4 to 33 steps unstable at the published setting "
    "(2 theta = 1, eta = .9, alpha = .1): an error along it grows with every visit, up to "
    "threefold. With 8 keys in random order, most gaps are there. The collapse of recall is this "
    "instability."
)


def _bindings(run: xr.DataTree) -> dict[int, Part]:
    """Return the parts on the published streams, by values per key."""
    some = [part for part in parts(run) if "stream.path" in part.settings]
    return {part.run["stream"].sizes["step"] // 8: part for part in some}


def _rotations(run: xr.DataTree) -> dict[int, Part]:
    """Return the parts whose keys return in rotation, by gap."""
    some = [part for part in parts(run) if "stream.entries" in part.settings]
    return {part.settings["stream.entries"]: part for part in some}


@hookimpl
def engine_reports() -> Mapping[str, type]:
    """Return the report on rebinding."""
    return {"rebinding": Rebinding}
