"""Pairs for `engine stream -`, and what it says of them."""

import json
import subprocess

import numpy as np

from .cli_cases import ENGINE

GOOD = '{"key": [1, 0], "value": [2]}\n'


def told(text):
    def refuse(constant):
        raise AssertionError(constant)

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def piped(text, *args):
    """Run `engine stream -` on some text: (exit code, stdout, stderr)."""
    done = subprocess.run(
        [ENGINE, "stream", "-", *map(str, args)], input=text, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def pairs(keys, values, **more):
    rows = zip(*[x.tolist() for x in (keys, values, *more.values())], strict=True)
    return [dict(zip(["key", "value", *more], row, strict=True)) for row in rows]


def written(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def draw(n=40, key=4, value=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, key)) / 2, rng.normal(size=(n, value))


# -------------------------------------------------------------------------------------- a scenario
