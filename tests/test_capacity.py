"""The sealed recall study: how many random pairs fit, against the population's numbers.

Published recall study (N iid unit keys and values in R^d, one pass, step .2; the gated rule takes
.2 for a quarter of the pairs at random positions and .02 for the rest; nearest stored value). The
population is the mean of 2000 repetitions per width; here are 30, with seeds fixed beforehand.
"""

import numpy as np
import pytest

import engine
from engine import sealed
from engine.measure.statistics import estimate

LOADS = (0.5, 1, 2, 4, 8)
POPULATION = {
    ("delta", 8): (0.9726, 0.8194, 0.5000, 0.2223, 0.0840),
    ("delta", 16): (0.9894, 0.9126, 0.6404, 0.3097, 0.1194),
    ("delta", 32): (0.9992, 0.9833, 0.8322, 0.4723, 0.2020),
    ("gated", 8): (0.5713, 0.3797, 0.2826, 0.1944, 0.0895),
    ("gated", 16): (0.4669, 0.3245, 0.2757, 0.2277, 0.1324),
    ("gated", 32): (0.3977, 0.2986, 0.2690, 0.2530, 0.1910),
    ("hebbian", 8): (0.9656, 0.7916, 0.4636, 0.2034, 0.0775),
    ("hebbian", 16): (0.9878, 0.8971, 0.6027, 0.2746, 0.0962),
    ("hebbian", 32): (0.9993, 0.9824, 0.8280, 0.4525, 0.1613),
}
MEANS = {
    "delta": (0.9871, 0.9051, 0.6575, 0.3348, 0.1351),
    "gated": (0.4786, 0.3343, 0.2757, 0.2251, 0.1377),
}
TEXT = """
trials = 30
record = "final"
[seeds]
sealed = {seed}
[stream]
generator = "random"
steps = {steps}
key = {d}
value = {d}
priority = 0.25
exact = true
[solvers.hebbian]
solver = "linear_attention"
[solvers.delta]
beta = 0.2
[solvers.gated]
solver = "delta"
beta = {{ gate = "priority", low = 0.02, high = 0.2 }}
[probes.recall]
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Return every run of the study, sealed, by width and load."""
    folder, runs = tmp_path_factory.mktemp("study"), {}
    for i, (d, load) in enumerate((d, load) for d in (8, 16, 32) for load in LOADS):
        path = folder / f"capacity_{d}_{i}.toml"
        path.write_text(TEXT.format(seed=12345 + i, steps=round(load * d), d=d))
        runs[d, load] = engine.run(path, sealed=True)
    return runs


def recall(run, label, where=None):
    """Return the share of keys recalled in each trial, of those `where` is true."""
    hit = run[f"probes/recall/{label}/recalled"].transpose("query", "trial").values
    return np.nanmean(hit if where is None else np.where(where, hit, np.nan), axis=0)


def test_the_study_was_sealed(study):
    for run in study.values():
        assert sealed.mark(run.attrs).startswith("sealed seeds: opening 1")
        assert run["stream"].sizes["trial"] == 30


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("label, d", POPULATION)
def test_every_cell_of_the_table(study, label, d, load):
    """Within 3 standard errors of the population: of these trials' own mean, and no less than that
    of as many independent keys, for where none is missed the trials show no spread at all."""
    population = POPULATION[label, d][LOADS.index(load)]
    found = estimate(recall(study[d, load], label))
    keys = np.sqrt(population * (1 - population) / (30 * round(load * d)))
    assert abs(found.value - population) <= 3 * max(found.se, keys)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("label", MEANS)
def test_the_mean_over_widths(study, label, load):
    mean = np.mean([recall(study[d, load], label) for d in (8, 16, 32)], axis=0)
    assert estimate(mean).agrees(MEANS[label][LOADS.index(load)])


ENDPOINTS = {
    "priority gain over plain delta": (0.3819, 0.0096),
    "ordinary change": (-0.1240, 0.0033),
    "overall, gated": (0.1377, 0.0023),
    "overall, plain delta": (0.1351, 0.0026),
}


@pytest.mark.parametrize("what", ENDPOINTS)
def test_the_four_endpoints_at_the_largest_load(study, what):
    """Widths with equal weight; the published standard error of 30 repetitions, and about ours."""
    population, se = ENDPOINTS[what]
    parts = []
    for d in (8, 16, 32):
        run = study[d, 8]
        first = run["stream/priority"].transpose("step", "trial").values
        assert (first.sum(axis=0) == 2 * d).all()  # exactly a quarter
        parts.append({
            "priority gain over plain delta":
                recall(run, "gated", first) - recall(run, "delta", first),
            "ordinary change": recall(run, "gated", ~first) - recall(run, "delta", ~first),
            "overall, gated": recall(run, "gated"),
            "overall, plain delta": recall(run, "delta"),
        }[what])  # fmt: skip
    found = estimate(np.mean(parts, axis=0))
    assert abs(found.value - population) <= 3 * se
    assert 0.6 * se < found.se < 1.5 * se  # chi, 29 degrees: 99.9 % in 0.61 .. 1.42
