"""Probes on the way: at steps, of books and given queries; ranks, intrusions; nothing disturbed."""

from pathlib import Path

import numpy as np
import pytest

import engine
from engine import answers
from engine.answers import last

from .cli_cases import FAULTY

RNG = np.random.default_rng(7)


def run(out=None, steps=24, stream=None, **more):
    stream = {"generator": "rebinding", "entries": 4, "key": 6, "value": 5, "probability": 0.4,
              "steps": steps} if stream is None else stream  # fmt: skip
    table = {"seed": 5, "trials": 3, "stream": stream, "solvers": {
        "delta": {"beta": 0.8}, "softmax": {"solver": "softmax_attention"},
        "gate": {"solver": "forgetting_attention", "gamma": 0.9},
    }}  # fmt: skip
    return engine.run({**table, **more}, out)


# ---------------------------------------------------------------------------------- the steps


@pytest.mark.parametrize("when", [{"steps": [3, 8, 17, 24]}, {"every": 7}, {"steps": [24]}])
@pytest.mark.parametrize("ask", ["keys", "codebook"])
def test_a_probe_on_the_way_is_the_probe_at_the_end_of_a_shorter_run(when, ask, small_shards):
    """The definition of asking at a step: the stream ends there. To the last bit."""
    long = run(probes={"p": {"ask": ask, **when}})["probes/p"]
    for i, stop in enumerate(long["probe_step"].values):
        short = run(steps=int(stop), probes={"p": {"ask": ask}})["probes/p"]
        for label in ("delta", "softmax", "gate"):
            for name, x in short[label].data_vars.items():
                mine = long[label][name].isel(probe_step=i)
                np.testing.assert_array_equal(mine[: len(x)], x, err_msg=f"{label} {name} {stop}")
                none = mine[len(x) :].values
                assert np.isnan(none).all() if none.dtype.kind == "f" else (none == -1).all()
        count = short.sizes["query"]
        np.testing.assert_array_equal(long["wanted"][i, :count], short["wanted"])
        assert (long["wanted"][i, count:] == -1).all()
        np.testing.assert_array_equal(long["keys"][:count], short["keys"])


@pytest.mark.parametrize("kernel", ["loop", "numba", "chunk"])
@pytest.mark.parametrize("record", ["every", "final", {"keyframes": 6}], ids=str)
def test_asking_disturbs_nothing(kernel, record, monkeypatch, small_shards):
    """The same run without probes, bit for bit, whatever the form of the recurrence."""
    if kernel == "numba":
        pytest.importorskip("numba")
    stream = {"generator": "random", "steps": 40, "key": 4, "value": 3, "pairs": 6}
    table = {"kernel": kernel, "record": record, "stream": stream,
             "solvers": {"delta": {"beta": 0.7}}}  # fmt: skip
    asked = {"a": {"steps": [1, 5, 6, 33]}, "b": {"every": 9, "ask": "codebook"}, "c": {}}
    probed, plain = engine.run({**table, "probes": asked}), engine.run(table)
    assert set(probed["probes"].children) == {"a", "b", "c"}
    for group in set(plain.groups) & {"/solvers/delta", "/keyframes/delta"}:
        for name, x in plain[group].data_vars.items():
            assert probed[f"{group}/{name}"].values.tobytes() == x.values.tobytes(), name
    # What was asked is what was there: S^T q of the recorded states (chunks: up to rounding).
    if record == "every":
        for i, stop in enumerate((1, 5, 6, 33)):
            keys = plain["stream/keys"].values[:stop]
            want = np.einsum("qbk,bkv->qbv", keys, plain["solvers/delta/S"].values[stop - 1])
            got = probed["probes/a/delta/read"].values[i, :stop]
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-13)


def test_a_rule_that_writes_in_place_is_not_disturbed(faulty, tmp_path, monkeypatch):
    pure = "return State(s.S + ops.outer(k, v), s.n + 1)"
    text = FAULTY.replace(pure, "s.S[...] += ops.outer(k, v); return State(s.S, s.n + 1)")
    (tmp_path / "faulty.py").write_text(text.replace("s.n) == self.at", "s.n) == -1"))
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(tmp_path))
    table = {"stream": {"generator": "random", "steps": 20, "key": 4, "value": 3},
             "solvers": {"faulty": {}}}  # fmt: skip
    probed = engine.run({**table, "probes": {"p": {"every": 3}}})
    np.testing.assert_array_equal(probed["solvers/faulty/S"], engine.run(table)["solvers/faulty/S"])
    want = np.einsum("qbk,bkv->qbv", probed["stream/keys"][:6], probed["solvers/faulty/S"][5])
    np.testing.assert_allclose(probed["probes/p/faulty/read"][1, :6], want, rtol=1e-13)


def test_a_read_that_fails_at_a_probe_is_told_and_loses_no_step(tmp_path, monkeypatch):
    def fail(*args):
        raise KeyError("no such key")

    monkeypatch.setattr("engine.track.ask", fail)
    with pytest.raises(engine.RunError, match="solver 'delta' failed at a probe: KeyError: 'no su"):
        run(tmp_path / "r.zarr", probes={"p": {}})
    assert engine.open(tmp_path / "r.zarr").attrs["committed"] == 24


# ---------------------------------------------------------------------------------- the queries


def test_given_queries_are_read_wherever_they_come_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    queries = RNG.standard_normal((5, 6))
    np.save("q.npy", queries)
    np.savez("q.npz", queries=queries, other=np.zeros(3))
    np.savez("one.npz", any=queries)
    np.save("each.npy", np.repeat(queries[:, None], 3, axis=1))
    Path("sub").mkdir()
    np.save("sub/beside.npy", queries)
    engine.run({"stream": {"generator": "random", "steps": 5, "key": 6, "value": 2},
                "solvers": {"delta": {}}}, "stored.zarr")  # fmt: skip
    for given in (queries.tolist(), "q.npy", "q.npz", "one.npz", "each.npy", "stored.zarr"):
        found = run(probes={"p": {"queries": given, "steps": [4, 24]}})
        asked = engine.open("stored.zarr")["stream/keys"].values if given == "stored.zarr" else 0
        want = queries[:, None] if given != "stored.zarr" else asked
        want = np.broadcast_to(want, (5, 3, 6))
        np.testing.assert_array_equal(found["probes/p/keys"], want)
        for i, stop in enumerate((4, 24)):
            state = found["solvers/delta/S"].values[stop - 1]
            read = found["probes/p/delta/read"].values[i]
            np.testing.assert_allclose(read, np.einsum("qbk,bkv->qbv", want, state), atol=1e-13)
        assert np.isnan(found["probes/p/delta/recalled"]).all()
    Path("sub/s.toml").write_text(
        '[stream]\ngenerator = "random"\nsteps = 4\nkey = 6\n[solvers.delta]\n'
        '[probes.p]\nqueries = "beside.npy"\n'
    )
    np.testing.assert_array_equal(engine.run("sub/s.toml")["probes/p/keys"][:, 0], queries)


@pytest.mark.parametrize("what, said", [
    ("array.npy", "float64 of shape \\(5, 7\\); expected numbers of shape \\(query, 6\\)"),
    ("three.npy", "float64 of shape \\(5, 2, 6\\); expected"),
    ("two.npz", "no array 'queries'; Known: a, b"),
    ("text.npy", "cannot be read; give an npy or npz file"),
    ("folder", "cannot be read; give an npy or npz file"),
])  # fmt: skip
def test_a_file_without_queries_is_refused(what, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("array.npy", np.zeros((5, 7)))
    np.save("three.npy", np.zeros((5, 2, 6)))
    np.savez("two.npz", a=np.zeros((5, 6)), b=np.zeros((5, 6)))
    Path("text.npy").write_text("hello")
    Path("folder").mkdir()
    with pytest.raises(engine.InputError, match=f"probes.p: queries = {what}: {said}"):
        run(probes={"p": {"queries": what}})


def test_a_book_is_asked_for_what_each_key_holds_now():
    found = run(probes={"p": {"ask": "codebook", "steps": [2, 9, 24]}})
    stream, probe = found["stream"], found["probes/p"]
    np.testing.assert_array_equal(probe["keys"], stream["key_book"].transpose("entry", ...))
    for i, stop in enumerate((2, 9, 24)):
        for trial in range(3):
            holds = {}
            for t in range(stop):
                holds[int(stream["key_id"][t, trial])] = int(stream["value_id"][t, trial])
            want = [holds.get(entry, -1) for entry in range(4)]
            assert probe["wanted"][i, :, trial].values.tolist() == want
    assert (probe["wanted"] == -1).any() and (probe["wanted"] >= 0).any()


# ---------------------------------------------------------------------------------- decoding


def test_recall_is_rank_zero_and_an_intrusion_is_an_older_binding():
    """Orthonormal keys, softmax at a sharp scale: all bindings of a key share its weight."""
    stream = {"generator": "rebinding", "entries": 4, "rebindings": 5, "key": 8, "value": 16}
    found = run(stream=stream, probes={"p": {"every": 5}, "q": {"every": 5, "ask": "codebook"}},
                solvers={"softmax": {"solver": "softmax_attention", "scale": 50.0}})  # fmt: skip
    ids = {n: found[f"stream/{n}"].values for n in ("key_id", "value_id")}
    seen = 0
    for probe in ("p", "q"):
        wanted, answer = found[f"probes/{probe}/wanted"].values, found[f"probes/{probe}/softmax"]
        for i, q, b in np.argwhere(wanted >= 0):
            key = ids["key_id"][q, b] if probe == "p" else q
            past = ids["value_id"][: 5 * (i + 1), b][ids["key_id"][: 5 * (i + 1), b] == key]
            got = int(answer["decoded"][i, q, b])
            assert wanted[i, q, b] == past[-1]
            assert float(answer["intruded"][i, q, b]) == (got in past[:-1])
            assert float(answer["recalled"][i, q, b]) == (got == past[-1])
            assert (int(answer["rank"][i, q, b]) == 0) == (got == past[-1])
            seen += got in past[:-1]
    assert seen > 20


# ---------------------------------------------------------------------------------- the store


def test_a_stored_run_keeps_every_answer_that_its_steps_have(tmp_path, monkeypatch, small_shards):
    probes = {"p": {"steps": [4, 20, 38]}, "q": {}}
    stream = {"generator": "random", "steps": 40, "key": 4, "value": 3}
    table = {"stream": stream, "solvers": {"delta": {"beta": 0.5}}, "probes": probes}
    memory = engine.run(table)
    stored = engine.run(table, tmp_path / "a.zarr")
    for name in ("probe_step", "keys", "wanted", "delta/read", "delta/rank", "delta/recalled"):
        np.testing.assert_array_equal(stored[f"probes/p/{name}"], memory[f"probes/p/{name}"])
    assert "probe_step" not in stored["probes/q"].dims
    assert last(stored["probes/p"])["delta/read"].sizes == {"query": 38, "trial": 1, "value": 3}
    # Cut after 32 steps: two of three answers are there, and none is made up.
    from engine.recorder import Recorder

    write = Recorder.write

    def cut(self, frame):
        if frame.start >= 32:
            raise OSError("no room")
        write(self, frame)

    monkeypatch.setattr(Recorder, "write", cut)
    with pytest.raises(engine.RunError, match="no room"):
        engine.run(table, tmp_path / "b.zarr")
    part = engine.open(tmp_path / "b.zarr")
    assert part.attrs["committed"] == 32
    assert part["probes/p/probe_step"].values.tolist() == [4, 20]
    for name in ("wanted", "delta/read", "delta/rank", "delta/decoded"):
        np.testing.assert_array_equal(part[f"probes/p/{name}"], memory[f"probes/p/{name}"][:2])


def test_what_is_kept_is_what_is_asked(tmp_path):
    """A probe of a book, or at early steps, does not hold the whole stream."""
    from engine.probes import Probe, question
    from engine.sources import GeneratorSource

    source = GeneratorSource(engine.generator("rebinding", probability=0.1), 0, 2, 5000)
    for given, most in (({"ask": "codebook"}, 5000 * 2 * 8 * 2), ({"steps": [10]}, 10 * 2 * 600)):
        q = question("p", Probe(**given), source)
        kept = answers.Written(source, q, q.stops[-1])
        for tokens in source.blocks(64):
            kept(tokens)
        assert 0 < sum(x.nbytes for parts in kept._kept.values() for x in parts) <= most
        assert "values" not in kept._kept
