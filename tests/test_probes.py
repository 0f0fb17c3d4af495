"""Probes: what is asked, what comes back, and what it decodes to."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

import engine
from engine.answers import Written, ask
from engine.api import Generator
from engine.backend import backend
from engine.coefficients import Binding
from engine.loop import loop
from engine.measure import recalled
from engine.probes import Probe, question
from engine.signatures import coefficients
from engine.sources import ArraySource, GeneratorSource
from engine.track import Track


def make_track(source, name="delta", view=None, **given):
    solver = engine.solver(name)
    bindings = {
        n: Binding(n, d.spec, float(given.get(n, d.default)))
        for n, d in coefficients(type(solver)).items()
    }
    return Track(name, solver, source, bindings, view, backend("numpy"), "float64")


def written(source, block=5, beta=1.0):
    """Stream a source past the consumer; return it and a delta rule that saw the same."""
    kept, track = all_keys(source), make_track(source, beta=beta)
    for frame in loop(source, [track], block):
        kept(frame.tokens)
    return kept.asked(source.steps), track


def all_keys(source):
    """Return what keeps the pairs that a probe in its plainest form asks for."""
    return Written(source, question("recall", Probe(), source))


def arrays(steps=6, trials=2, key=3, value=2, **more):
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(steps, trials, key)), rng.normal(size=(steps, trials, value))
    return {"keys": keys, "values": values, **more}


def test_every_key_is_asked_with_its_own_step_as_the_answer():
    given = arrays()
    asked, _ = written(ArraySource(given))
    np.testing.assert_array_equal(asked.keys, given["keys"])
    np.testing.assert_array_equal(asked.wanted, np.arange(6)[:, None].repeat(2, 1))
    np.testing.assert_array_equal(asked.book, given["values"].swapaxes(0, 1))


def test_only_the_latest_binding_of_a_key_is_wanted():
    key_id = np.array([[0, 5], [1, 5], [0, 5], [2, 6], [1, 7], [0, 8]])
    asked, _ = written(ArraySource(arrays(key_id=key_id)))
    want = [[-1, -1], [-1, -1], [-1, 2], [3, 3], [4, 4], [5, 5]]
    np.testing.assert_array_equal(asked.wanted, want)


def test_a_book_of_values_names_the_answers():
    key_id, value_id = np.array([[0], [1], [0]]), np.array([[2], [0], [1]])
    given = arrays(3, 1, key_id=key_id, value_id=value_id)
    book = np.arange(6.0).reshape(1, 3, 2)
    asked, _ = written(ArraySource(given, {"value_book": book}))
    np.testing.assert_array_equal(asked.wanted, [[-1], [0], [1]])
    np.testing.assert_array_equal(asked.book, book)


def test_a_masked_write_replaces_nothing_and_is_not_wanted():
    key_id = np.array([[0], [1], [0]])
    mask = np.array([[True], [True], [False]])
    asked, _ = written(ArraySource(arrays(3, 1, key_id=key_id, mask=mask)))
    np.testing.assert_array_equal(asked.wanted, [[0], [1], [-1]])


@pytest.mark.parametrize("junk", [0.0, 1e6, np.nan])
def test_a_padded_trial_recalls_what_it_recalls_alone(junk):
    """Padding neither answers nor stands among the answers.

    With weak writes reads are short: a zero among the answers would be the nearest of many.
    """
    given = arrays(30, 2, 4, 4)
    given["mask"] = np.ones((30, 2), bool)
    alone = {n: x[:12, :1] for n, x in given.items()}
    given["mask"][12:, 0] = False
    given["keys"][12:, 0] = given["values"][12:, 0] = junk
    asked, track = written(ArraySource(given), beta=0.05)
    lone, single = written(ArraySource(alone), beta=0.05)
    got, want = ask(track, asked), ask(single, lone)
    for name in ("read", "recalled"):
        assert got[name][1][:12, 0].tobytes() == want[name][1][:, 0].tobytes()
    assert np.isnan(got["recalled"][1][12:, 0]).all()
    assert 0 < np.nanmean(got["recalled"][1]) < 1


def test_asking_is_reading_and_changes_nothing():
    given = arrays()
    asked, track = written(ArraySource(given))
    before = {n: x.tobytes() for n, x in track.arrays().items()}
    answers = ask(track, asked)
    assert {n: x.tobytes() for n, x in track.arrays().items()} == before
    assert answers["read"][0] == ("query", "trial", "value")
    want = np.einsum("qbk,bkv->qbv", given["keys"], track.arrays()["S"])
    np.testing.assert_allclose(answers["read"][1], want, rtol=1e-13)
    want = recalled(answers["read"][1], asked.book[None], asked.wanted)
    np.testing.assert_array_equal(answers["recalled"][1], want)


@pytest.mark.parametrize("book", [False, True])
@pytest.mark.parametrize("features", [2, 5])
def test_answers_decode_to_values_as_the_view_maps_them(book, features):
    """Orthonormal keys are recalled exactly, in whatever space the values are."""
    view = engine.view("projection", w_k=np.eye(6).tolist(), value_features=features)
    given = arrays(key=6)
    given["keys"] = np.linalg.qr(np.random.default_rng(1).normal(size=(2, 6, 6)))[0].swapaxes(0, 1)
    ids = {"key_id": np.arange(6)[:, None].repeat(2, 1)} if book else {}
    facts = {"value_book": given["values"].swapaxes(0, 1)} if book else {}
    source = ArraySource({**given, **ids, **({"value_id": ids["key_id"]} if book else {})}, facts)
    kept, track = all_keys(source), make_track(source, view=view, beta=1.0)
    for frame in loop(source, [track], 5):
        kept(frame.tokens)
    answers = ask(track, kept.asked(6))
    np.testing.assert_allclose(answers["read"][1], view.values(given["values"]), atol=1e-12)
    assert (answers["recalled"][1] == 1.0).all()


def test_questions_go_through_the_view():
    source = ArraySource(arrays())
    plain, seen = make_track(source), make_track(source, view=engine.view("unit"))
    for _ in loop(source, [plain, seen], 5):
        pass
    asked = np.random.default_rng(1).normal(size=(4, 2, 3))
    norm = np.linalg.norm(asked, axis=-1, keepdims=True)
    want = np.einsum("qbk,bkv->qbv", asked / norm, seen.arrays()["S"])
    np.testing.assert_allclose(seen.ask(asked), want, rtol=1e-13)
    assert plain.ask(asked[:0]).shape == (0, 2, 2)


@dataclass(frozen=True)
class Reusing(Generator):
    """Draws every block into the same array, as a fast generator may."""

    def start(self, draws, steps):
        return np.empty((100, draws.trials, 2))

    def draw(self, state, draws, steps):
        out = state[: len(steps)]
        out[:] = np.arange(steps.start, steps.stop)[:, None, None]
        return state, {"keys": out, "values": out}


def test_what_was_written_is_kept_though_the_generator_reuses_its_arrays():
    asked, _ = written(GeneratorSource(Reusing(), trials=1, steps=10), block=4)
    np.testing.assert_array_equal(asked.keys[:, 0, 0], np.arange(10))


def test_orthonormal_keys_do_not_interfere():
    """Published: orthonormal keys, N = d: Hebbian and delta(1) recall to 6e-16.

    Each read is v plus d products of a rounding of k_i.k_j (about eps) with a unit value.
    """
    run = engine.run(
        {
            "trials": 5,
            "stream": {"generator": "orthonormal", "key": 16, "value": 16},
            "solvers": {"linear_attention": {}, "delta": {"beta": 1.0}},
            "probes": {"recall": {}},
        }
    )
    assert isinstance(run.attrs["scenario"], Mapping)
    for label in ("linear_attention", "delta"):
        probe = run[f"probes/recall/{label}"]
        assert probe["recalled"].dims == ("query", "trial") and bool(probe["recalled"].all())
        error = abs(probe["read"].values - run["stream/values"].values)
        assert error.max() < 16 * np.finfo(float).eps


def test_capacity_of_random_pairs_is_that_of_the_sealed_recall_study():
    """Published, d = 16, N/d = 8, 2000 repetitions: .1194 .1324 .0962; 30 trials here.

    Tolerance: 4 standard errors of these trials' own mean.
    """
    swept = engine.run("capacity")
    run = swept["parts/9"]
    assert (
        run.attrs["settings"]["stream.key"] == 16 and run.attrs["settings"]["stream.steps"] == 128
    )
    for label, population in (("delta", 0.1194), ("gated", 0.1324), ("hebbian", 0.0962)):
        recall = run[f"probes/recall/{label}/recalled"].mean("query").values
        assert recall.shape == (30,)
        assert abs(recall.mean() - population) < 4 * recall.std(ddof=1) / np.sqrt(30)
    # Softmax at scale 50 recalls everything (the same study).
    assert run["probes/recall/softmax/recalled"].values.all()


def test_least_squares_recalls_everything_up_to_the_dimension():
    """Published: random unit keys, least squares is exact to N = d."""
    run = engine.run(
        {
            "trials": 20,
            "stream": {"generator": "random", "steps": 16, "key": 16, "value": 16},
            "solvers": {"rls": {"ridge": 1e-9, "gamma": 1.0}},
            "probes": {"recall": {}},
        }
    )
    assert run["probes/recall/rls/recalled"].values.all()


def test_a_run_without_steps_asks_nothing():
    run = engine.run({
        "stream": {"generator": "random", "steps": 0}, "solvers": {"delta": {}},
        "probes": {"recall": {}},
    })  # fmt: skip
    assert "probes" not in run.children
