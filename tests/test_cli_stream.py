"""`engine stream SCENARIO`: frames as JSON lines, and the schema of every line."""

import json
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

import engine
from engine.commands.stream import _described

from .cli_cases import ENGINE, scenario
from .stream_cases import GOOD, draw, pairs, piped, told, written

pytestmark = pytest.mark.usefixtures("small_toml")


def test_a_line_per_frame_says_what_the_recorded_run_says(call):
    code, out, err = call("stream", "small.toml", "--every", "15")
    assert (code, err) == (0, "")
    lines, run = told(out), engine.run("small.toml")
    assert [(line["schema"], line["start"], line["stop"]) for line in lines] == [
        (1, 0, 15), (1, 15, 30), (1, 30, 40)
    ]  # fmt: skip
    for line in lines:
        assert set(line["solvers"]) == {"delta", "exact"} and line["seconds"] > 0
        for label, says in line["solvers"].items():
            ds, last = run[f"solvers/{label}"], line["stop"] - 1
            for name in ("prediction", "output"):
                assert says[name] == ds[name].values[last].tolist()
            steps = slice(line["start"], line["stop"])
            away = ds["prediction"].values[steps] - run["stream/values"].values[steps]
            assert says["prediction_error"] == pytest.approx(np.linalg.norm(away, axis=-1).mean())
            norm = np.linalg.norm(ds["S"].values[last], axis=(-2, -1)).mean()
            assert says["state_norm"]["S"] == pytest.approx(norm)
            assert says["diverged_at"] is None and "tracking_error" not in says
    for label in ("delta", "exact"):
        recalled = run[f"probes/recall/{label}/recalled"]
        got = lines[-1]["solvers"][label]["recall"]["recall"]
        assert got == pytest.approx(float(recalled.mean()))


def test_steps_solvers_settings_and_every_read(call):
    args = ["--every", 15, "--steps", 20, "--solver", "exact", "--reads", "every"]
    lines = told(call("stream", "small.toml", *args, "--set", "seed=5")[1])
    run = engine.run("small.toml", seed=5)
    assert [line["stop"] for line in lines] == [15, 20]
    assert all(set(line["solvers"]) == {"exact"} for line in lines)
    output = np.concatenate([line["solvers"]["exact"]["output"] for line in lines])
    np.testing.assert_array_equal(output, run["solvers/exact/output"][:20])


def test_an_endless_scenario_streams_until_it_is_told(call):
    endless = Path("small.toml").read_text().replace("steps = 40\n", "")
    Path("endless.toml").write_text(endless)
    assert len(told(call("stream", "endless.toml", "--every", 30, "--steps", 100)[1])) == 4


def test_the_known_target_is_measured(call):
    lines = told(call("stream", "drift", "--every", 500)[1])
    run = engine.run("drift")
    error = engine.measure.tracking_error(run["solvers/implicit/S"], run["stream/target_map"])
    for line in lines:
        got = line["solvers"]["implicit"]["tracking_error"]
        assert got == pytest.approx(float(error[line["stop"] - 1].mean()))


def test_a_diverged_solver_is_null_and_named(call):
    out = call("stream", "small.toml", "--every", 40, "--set", "solvers.delta.beta=1e200")[1]
    (line,) = told(out)
    says = line["solvers"]["delta"]
    assert says["prediction"] == [[None] * 3] * 2 and says["prediction_error"] is None
    assert 0 <= says["diverged_at"] < 5 and says["state_norm"] == {"S": None}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["small.toml", "--every", 0], "--every = 0 must be a whole number, 1 or more"),
        (["small.toml", "--steps", 0], "--steps = 0 must be a whole number, 1 or more"),
        (["small.toml", "--solver", "dleta"], "'dleta': the scenario has no such label; did you"),
        (["drfit"], "did you mean 'drift'"),
        (["small.toml", "--set", "solvers.delta.bta=1"], "delta takes no 'bta'; did you mean"),
        ([], "give a scenario, or - for pairs on standard input"),
        (["-"], "- needs a solver: --solver NAME, or NAME:LABEL"),
        (["-", "--solver", "dleta"], "did you mean 'delta'"),
        (["-", "--solver", "delta", "--solver", "delta"], "the label 'delta' is taken; write"),
        (["-", "--solver", "delta:a/b"], "'a/b' cannot be a label"),
        (["-", "--solver", "delta", "--set", "seed=1"], "without a scenario, only solvers, dtype"),
        (["-", "--solver", "delta", "--set", "solvers.d.beta=1"], "no solver has the label 'd'"),
        (["-", "--solver", "delta", "--set", "solvers.delta.bet=1"], "delta takes no 'bet'; did"),
    ],
)
def test_bad_input_is_named_before_anything_is_printed(args, said, call):
    code, out, err = call("stream", *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and said in err


def test_a_closed_pipe_is_a_normal_end():
    command = ["bash", "-o", "pipefail", "-c", f"{ENGINE} stream drift --every 50 | head -3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line)["stop"] for line in done.stdout.splitlines()] == [50, 100, 150]


@pytest.mark.parametrize("source", ["scenario", "pairs"])
def test_ctrl_c_ends_it_with_130(source):
    endless = Path("small.toml").read_text().replace("steps = 40\n", "")
    Path("endless.toml").write_text(endless.replace("[probes.recall]", ""))
    args = ["endless.toml"] if source == "scenario" else ["-", "--solver", "delta"]
    process = subprocess.Popen(
        [ENGINE, "stream", *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    if source == "pairs":
        process.stdin.write(written(pairs(*draw(1))))
        process.stdin.flush()
    assert json.loads(process.stdout.readline())["stop"] == 1
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "FloatingPointError: the fit is gone"),
        ("none", "write gave NoneType, not State"),
        ("wide", "read gave float64"),
        ("exit", "SystemExit: 0"),
        ("read", "KeyError: 'no such key'"),
    ],
)
def test_a_solver_that_fails_is_named_after_the_lines_before_it(how, said, call, faulty):
    scenario(how, at=25, steps=40)
    code, out, err = call("stream", "faulty.toml", "--every", 10)
    assert code == 1 and [line["stop"] for line in told(out)] == [10, 20]
    assert "error: solver 'bad' failed at step 2" in err and said in err


# --------------------------------------------------------------------------------- standard input


def fits(value, schema):
    """Assert that a value is as a JSON Schema says: the few words of it that are used here."""
    kinds = {"object": dict, "array": list, "number": (int, float), "integer": int,
             "boolean": bool, "null": type(None)}  # fmt: skip
    if "const" in schema:
        assert value == schema["const"]
        return
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert any(isinstance(value, kinds[name]) for name in names), (value, schema)
    for name in schema.get("required", []):
        assert name in value
    for name, x in value.items() if isinstance(value, dict) else ():
        fits(x, schema.get("properties", {}).get(name) or schema["additionalProperties"])
    for x in value if isinstance(value, list) and "items" in schema else ():
        fits(x, schema["items"])


def test_lines_are_as_the_schema_says(call):
    schema = json.loads(call("stream", "--schema")[1])
    assert schema == _described() and schema["schema"] == 1
    lines = told(call("stream", "small.toml")[1]) + told(call("stream", "drift", "--steps", 3)[1])
    lines += told(piped(GOOD, "--solver", "delta")[1])
    for line in lines:
        fits(line, {**schema["output"], "additionalProperties": {"type": []}})
    fits(json.loads(GOOD), schema["input"])
