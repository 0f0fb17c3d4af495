"""`engine stream -`: answers to pairs on standard input, as JSON lines."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import engine

from .cli_cases import ENGINE
from .stream_cases import GOOD, draw, pairs, piped, told, written

pytestmark = pytest.mark.usefixtures("small_toml")


def test_pairs_are_answered_as_simulate_answers_them():
    keys, values = draw(300)
    rows = written(pairs(keys, values))
    args = ["--solver", "delta", "--solver", "rls:exact", "--set", "solvers.delta.beta=0.5"]
    code, out, err = piped(rows, *args)
    assert (code, err) == (0, "")
    lines = told(out)
    assert [line["stop"] for line in lines] == list(range(1, 301))
    for label, rule, more in (("delta", "delta", {"beta": 0.5}), ("exact", "rls", {})):
        ds = engine.simulate(rule, keys, values, **more)
        for name in ("prediction", "output"):
            got = np.array([line["solvers"][label][name] for line in lines])
            np.testing.assert_array_equal(got, ds[name])
    every = told(piped(rows, *args, "--every", 70, "--reads", "every", "--steps", 290)[1])
    assert [line["stop"] for line in every] == [70, 140, 210, 280, 290]
    output = np.concatenate([line["solvers"]["exact"]["output"] for line in every])
    np.testing.assert_array_equal(output, ds.output[:290])
    last = told(piped(rows, *args, "--every", 70, "--set", "dtype=float32")[1])
    np.testing.assert_allclose(last[-1]["solvers"]["exact"]["output"], ds.output[-1], rtol=1e-3)


def test_queries_masks_and_coefficients_of_a_line():
    keys, values = draw(30)
    rng = np.random.default_rng(1)
    queries, mask = rng.normal(size=keys.shape), rng.uniform(size=30) < 0.7
    beta, gamma = rng.uniform(size=30), rng.uniform(0.5, 1, size=(30, 4))
    rows = pairs(keys, values, query=queries, mask=mask, beta=beta, **{"kda.gamma": gamma})
    for t in range(0, 30, 3):
        rows[t].pop("beta")  # those of the command line
    for row in rows[1:]:  # the first line says how long values are
        if not row["mask"]:
            del row["value"]
    args = ["--solver", "kda", "--solver", "delta", "--set", "solvers.kda.beta=0.25"]
    lines = told(piped(written(rows), *args)[1])
    for label, usual, more in (("kda", 0.25, {"gamma": gamma}), ("delta", 1.0, {})):
        strength = np.where(np.arange(30) % 3 == 0, usual, beta)
        ds = engine.simulate(label, keys, values, queries, mask=mask, beta=strength, **more)
        for name in ("prediction", "output"):
            got = [line["solvers"][label][name] for line in lines]
            np.testing.assert_array_equal(np.array(got, dtype=float), ds[name])


def test_a_coefficient_by_label_is_nearer_than_one_by_name():
    rows = [{"key": [1.0], "value": [1.0], "beta": 0.5, "b.beta": 0.25}] * 2
    lines = told(piped(written(rows), "--solver", "delta:a", "--solver", "delta:b")[1])
    assert [line["solvers"]["a"]["output"] for line in lines] == [[0.5], [0.75]]
    assert [line["solvers"]["b"]["output"] for line in lines] == [[0.25], [0.4375]]


def test_no_pairs_are_no_lines_and_blank_lines_are_nothing():
    assert piped("", "--solver", "delta") == (0, "", "")
    assert piped("\n \n\n", "--solver", "delta") == (0, "", "")
    code, out, _ = piped('\r\n{"key": [1], "value": [2]}\r\n\n{"key":[1],"value":[3]}', "--solver",
                         "delta")  # fmt: skip
    assert code == 0 and [line["solvers"]["delta"]["output"] for line in told(out)] == [
        [2.0],
        [3.0],
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON: "),
        ('{"key": [1, 0], "value": [NaN]}', "not JSON: NaN is no number in JSON"),
        ('{"key": [1, 0], "value": [1e999]}', "'value' must .*; entry 0 is beyond what"),
        (f'{{"key": [1, 0], "value": [-1{"0" * 400}]}}', "'value' .*; entry 0 is beyond what"),
        ("[1, 2]", 'expected an object, as {"key"'),
        ('{"key": [1, 0], "value": [1]}, {"key": [1, 0], "value": [1]}', "not JSON: Extra data"),
        ('{"key": [1, 0], "value": 1}', "'value' must be a list of 1 numbers, as long as"),
        ('{"key": [1, 0, 0], "value": [1]}', "'key' must be a list of 2 numbers.*it has 3 entries"),
        ('{"key": [1, 0]}', "'value' must be a list of 1 numbers.*; there is none"),
        ('{"value": [1]}', "'key' must be a list of 2 numbers.*there is none"),
        ('{"key": [1, "0"], "value": [1]}', "'key' must be a list of 2.*; entry 1 is \"0\""),
        ('{"key": [1, null], "value": [1]}', "'key' must be a list of 2.*; entry 1 is null"),
        ('{"key": [[1, 0]], "value": [1]}', "'key' must be a list of 2 numbers.*; it has 1 entry"),
        ('{"key": [1, 0], "value": [1], "query": [1]}', "'query' must be a list of 2 numbers"),
        ('{"key": [1, 0], "value": [1], "mask": 1}', "mask = 1 must be true or false"),
        ('{"key": [1, 0], "value": [1], "bta": 1}', "no field or coefficient 'bta'; did you mean"),
        ('{"key": [1, 0], "valeu": [1]}', "no field or coefficient 'valeu'; did you mean 'value'"),
        ('{"key": [1, 0], "value": [1], "beta": -1}', "beta = -1 must be at least 0"),
        ('{"key": [1, 0], "value": [1], "beta": [1, 1]}', r"beta = \[1, 1\] must be a number"),
        ('{"key": [1, 0], "value": [1], "beta": "1"}', "beta = '1' must be a number"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("every", [1, 2])
def test_a_bad_line_is_named_after_the_answers_before_it(line, said, every):
    text = GOOD * 2 + "\n" + GOOD + line + "\n" + GOOD
    code, out, err = piped(text, "--solver", "delta", "--every", every)
    assert code == 2
    assert [x["stop"] for x in told(out)] == ([1, 2, 3] if every == 1 else [2])
    assert re.match(f"error: line 5: .*{said}", err), err


@pytest.mark.parametrize("beside", ["", GOOD])
def test_true_and_false_are_1_and_0_whatever_arrives_with_them(beside):
    code, out, _ = piped(beside + '{"key": [true, false], "value": [true]}\n', "--solver", "lms",
                         "--set", "solvers.lms.mu=1")  # fmt: skip
    assert code == 0 and told(out)[-1]["solvers"]["lms"]["output"] == [1.0]


def test_a_first_line_that_says_no_lengths():
    code, out, err = piped('{"key": 1, "value": [1]}\n', "--solver", "delta")
    assert (code, out) == (2, "") and "line 1: 'key' must be a list of numbers; it is 1" in err


def test_a_coefficient_that_must_be_given():
    code, out, err = piped(GOOD, "--solver", "comba")
    assert (code, out) == (2, "") and "line 1: comba needs the coefficient 'erase_key'" in err
    row = {"key": [1, 0], "value": [2], "erase_key": [1, 0]}
    code, out, err = piped(written([row]) + GOOD, "--solver", "comba")
    assert code == 2 and "line 2: comba needs the coefficient 'erase_key', as on other" in err
    assert told(out)[0]["solvers"]["comba"]["output"] == [2.0]


def test_a_rule_that_fails_is_named_with_its_step_after_the_answers_before_it(faulty):
    code, out, err = piped(GOOD * 20, "--solver", "delta", "--solver", "faulty", "--set",
                           "solvers.faulty.at=12")  # fmt: skip
    assert code == 1 and [x["stop"] for x in told(out)] == list(range(1, 13))
    assert "error: solver 'faulty' failed at step 12: FloatingPointError: the fit is gone" in err
    assert told(out)[-1]["solvers"]["delta"]["output"] == [2.0]


def test_what_is_not_finite_is_null():
    line = '{"key": [1e200, 0], "value": [1e200]}\n'
    out = told(piped(line * 3, "--solver", "delta")[1])
    assert out[0]["solvers"]["delta"] == {"prediction": [0.0], "output": [None], "diverged_at": 0}


def test_a_lone_line_is_answered_at_once():
    """However much came before: nothing waits for a block to fill."""
    process = subprocess.Popen(
        [ENGINE, "stream", "-", "--solver", "delta"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    late = threading.Timer(60, process.kill)
    late.start()
    try:
        for stop in (1, 2, 301, 302):
            count = 299 if stop == 301 else 1
            process.stdin.write(GOOD * count)
            process.stdin.flush()
            for _ in range(count):
                line = process.stdout.readline()
            assert json.loads(line)["stop"] == stop
        # Half a line is no line; its second half makes it one.
        process.stdin.write(GOOD[:10])
        process.stdin.flush()
        time.sleep(0.05)
        process.stdin.write(GOOD[10:])
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["stop"] == 303
        process.stdin.close()
        assert process.wait(30) == 0
    finally:
        late.cancel()
        process.kill()
        process.stdout.close()


def test_a_consumer_that_leaves_is_no_failure():
    producer = f"import sys\nwhile True: sys.stdout.write({GOOD!r} * 100)"
    command = f'"{sys.executable}" -c "$PRODUCER" 2>/dev/null | {ENGINE} stream - --solver delta'
    done = subprocess.run(
        ["bash", "-c", command + " | head -2; echo ${PIPESTATUS[1]}"], capture_output=True,
        text=True, timeout=60, env={**os.environ, "PRODUCER": producer},
    )  # fmt: skip
    *lines, code = done.stdout.splitlines()
    assert (len(lines), code, done.stderr) == (2, "0", "")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_flat():
    """Ten times the pairs, the same memory."""
    watch = (
        "import resource,sys,runpy;sys.argv=['engine',*sys.argv[1:]];from engine.cli import main"
    )
    watch += "\ntry: main()\nexcept SystemExit: pass\n"
    watch += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    peaks = []
    for count in (2_000, 20_000):
        done = subprocess.run(
            [sys.executable, "-c", watch, "stream", "-", "--solver", "delta", "--every", "10"],
            input=GOOD * count, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert len(done.stdout.splitlines()) == count // 10
        peaks.append(int(done.stderr))
    assert peaks[1] < peaks[0] + 5_000  # kilobytes


# ------------------------------------------------------------------------------------------ schema
