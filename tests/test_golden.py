"""Every rule against its authors' own code: the files of tests/golden through engine.simulate.

A file is named after a rule, with a variant behind "__"; a new file of a known rule needs no code.
"""

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import ops

FOLDER = Path(os.environ.get("ENGINE_GOLDEN", Path(__file__).parent / "golden"))
FILES = sorted(FOLDER.glob("*.npz"))


@dataclass
class Rule:
    """How a file's names map to ours: golden name -> our name.

    A golden name "log_x" bound to `name` is passed as exp(log_x): our decays are plain factors.
    """

    solver: str
    coefficients: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    fixed: dict = field(default_factory=dict)
    states: dict = field(default_factory=lambda: {"state": "S"})  # `state0` too: the start
    starts: dict = field(default_factory=dict)  # initial arrays under names of their own
    negated: tuple = ()  # our states whose sign the reference has the other way round
    scale: bool = False  # the rule takes the query scale as its hyperparameter
    read: dict = field(default_factory=dict)  # option -> what reads it off (arrays, meta)


NUMBER = r"([0-9.]+(?:e[+-]?[0-9]+)?)"


def said(pattern, key="equation"):
    """A number that the file's words give."""

    def find(arrays, meta):
        found = re.search(pattern, meta[key], re.IGNORECASE)
        assert found, f"{key} = {meta[key]!r} does not give {pattern!r}"
        return float(found[1])

    return find


def last(name):
    """The length of an array's last axis."""
    return lambda arrays, meta: arrays[name].shape[-1]


def iterations(arrays, meta):
    return int(said(rf"{NUMBER} iterations", "solver")(arrays, meta))


def minibatch(arrays, meta):
    facts = meta["extra_facts"]
    if "mini_batch" in facts:
        return int(facts["mini_batch"])
    words = {"words": f"{meta['solver']} ; {meta['equation']}"}
    return int(said(r"mini[-_]batch *=? *([0-9]+)", "words")(arrays, words))


DECAY = {"log_decay": "gamma"}
DELTA = {"beta": "beta", **DECAY}
MLP = {
    **{f"state_{p}": p for p in ("W1", "b1", "W2", "b2")},
    **{f"velocity_{p}": f"U_{p}" for p in ("W1", "b1", "W2", "b2")},
}
MLP_STARTS = {f"{p}_init": p for p in ("W1", "b1", "W2", "b2")}
HIDDEN = {"hidden": last("W1_init")}
TITANS = {"step_size": "theta", "momentum": "eta", "weight_decay": "alpha"}
MOMENTUM = {"state": "S", "state_momentum": "U"}
AFTER = {"state": "S", "state_precond": "A"}
SLOTS = {"state_keys": "Hk", "state": "Hv"}
GRAM = {"state": "G", "state_gram": "H"}
COVARIANCE = {"state": "S", "state_P": "P"}
PRECONDITIONED = {**DELTA, "log_decay_precond": "gamma_a", "beta_precond": "beta_a"}

RULES = {
    "linear_attention": Rule("linear_attention"),
    "linear_attention_normalised": Rule(
        "linear_attention",
        fixed={"normalise": True},
        read={"eps": said(rf"z_t \+ {NUMBER}\)")},
        states={"state": "S", "state_z": "z"},
    ),
    "simple_gla": Rule("retnet", DECAY),
    "retention": Rule("retnet", DECAY),
    "lightning": Rule("lightning", DECAY),
    "mamba2": Rule("mamba2", {"dt": "dt"}, {"A": "A"}),
    "mamba1": Rule("mamba", {"dt": "dt"}, {"A": "A"}),
    "gla": Rule("gla", DECAY),
    "rwkv6": Rule("rwkv6", DECAY, {"bonus": "bonus"}),
    "dplr": Rule("dplr", {**DECAY, "a": "a", "b": "b"}),
    "rwkv7": Rule("rwkv7", {**DECAY, "erase_key": "erase_key", "gate": "gate"}),
    "delta": Rule("delta", {"beta": "beta"}),
    "gated_delta": Rule("gated_delta", DELTA),
    "kda": Rule("kda", DELTA),
    "delta_product": Rule("delta_product", DELTA),
    "gdn2": Rule("gdn2", {**DECAY, "erase_gate": "erase_gate", "write_gate": "write_gate"}),
    "comba": Rule("comba", {**DELTA, "erase_key": "erase_key"}),
    "oja": Rule("oja", {"log_decay_value": "gamma", "beta": "beta"}),
    "precond_kda": Rule(
        "preconditioned_kda", PRECONDITIONED, states=AFTER, starts={"precond0": "A"}
    ),
    "precond_gated_delta": Rule(
        "preconditioned_gated_delta", PRECONDITIONED, states=AFTER, starts={"precond0": "A"}
    ),
    "gsa": Rule(
        "gsa",
        {**DECAY, "slots": "s"},
        states=SLOTS,
        scale=True,
        read={"slots": last("slots")},
    ),
    "abc": Rule(
        "abc",
        {"slot_logits": "s"},
        states={**SLOTS, "state_z": "z"},
        scale=True,
        read={"slots": last("slot_logits")},
    ),
    "mesa": Rule("mesa", DELTA, {"ridge": "ridge"}, states=GRAM),
    "mesa_cg": Rule(
        "mesa", DELTA, {"ridge": "ridge"}, states=GRAM, read={"iterations": iterations}
    ),
    "fox": Rule("forgetting_attention", DECAY, states={}, scale=True),
    "log_linear": Rule(
        "log_linear_attention",
        {**DECAY, "level_scales": "level_scales"},
        states={},
        read={"levels": last("level_scales")},
    ),
    "path": Rule(
        "path_attention", {**DELTA, "householder_key": "householder_key"}, states={}, scale=True
    ),
    "softmax_attention": Rule("softmax_attention", states={}, scale=True),
    "deltaformer": Rule(
        "deltaformer", {"beta": "beta", "queries": "address"}, states={}, scale=True
    ),
    "parallax": Rule("parallax", {"second_queries": "second_query"}, states={}, scale=True),
    "momentum_delta": Rule(
        "momentum_delta",
        {**DELTA, "erase_key": "erase_key", "log_mu": "mu", "eta": "eta"},
        states=MOMENTUM,
        starts={"momentum0": "U"},
        negated=("U",),  # the reference's momentum is a descent direction, M = -U
    ),
    "titans_linear": Rule("titans", TITANS, states=MOMENTUM, starts={"momentum0": "U"}),
    "titans_mlp": Rule("titans_mlp", TITANS, states=MLP, starts=MLP_STARTS, read=HIDDEN),
    "titans_mlp_tanh": Rule(
        "titans_mlp",
        TITANS,
        fixed={"activation": "tanh"},
        states=MLP,
        starts=MLP_STARTS,
        read=HIDDEN,
    ),
    "titans_mlp_library": Rule(
        "titans_mlp", TITANS, fixed={"biases": False}, states=MLP, starts=MLP_STARTS, read=HIDDEN
    ),
    "titans_mlp_library_mean_loss": Rule(
        "titans_mlp",
        TITANS,
        fixed={"biases": False, "loss": "mean"},
        states=MLP,
        starts=MLP_STARTS,
        read=HIDDEN,
    ),
    "ttt_linear": Rule(
        "ttt_linear",
        {"eta": "eta"},
        {"ln_weight": "ln_weight", "ln_bias": "ln_bias"},
        states={"state": "S", "state_bias": "c"},
        starts={"bias0": "c"},
        read={"minibatch": minibatch},
    ),
    "longhorn": Rule("longhorn", {"beta": "beta"}),
    "longhorn_diagonal": Rule("longhorn_diagonal", {"beta": "beta"}),
    "nlms": Rule("nlms", {"mu": "mu"}, read={"eps": said(rf"/ \({NUMBER} \+ k_t\.k_t\)")}),
    "kaczmarz": Rule("kaczmarz", {"mu": "mu"}),
    "lms": Rule("lms", {"mu": "mu"}),
    "rls": Rule("rls", {"forgetting": "gamma"}, {"eps": "ridge"}, states=COVARIANCE),
    "rls_vector": Rule("rls", {"forgetting": "gamma"}, {"alpha": "ridge"}, states=COVARIANCE),
    "ridge": Rule("ridge", {}, {"ridge": "ridge"}),
    "nadaraya_watson": Rule("nadaraya_watson", {}, {"bandwidth": "bandwidth"}, states={}),
}


def read(path):
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files if name != "meta"}
        return arrays, json.loads(str(file["meta"]))


def plain(name, array):
    """A log decay as the factor it stands for."""
    return np.exp(array) if name.startswith("log_") else array


def start(rule, arrays, meta, keys, values, options, coefficients):
    """The file's initial state; what it does not give starts as the rule starts it."""
    names = {**{f"{expected}0": ours for expected, ours in rule.states.items()}, **rule.starts}
    known = {"keys", "values", "queries", "key_features", "query_features"}
    known |= {*names, *rule.coefficients, *rule.options, *meta["expected"]}
    known |= {f"{name}_f64" for name in meta["expected"]}
    unknown = set(arrays) - known
    assert not unknown, f"{rule.solver} has nowhere to put {sorted(unknown)}"
    given = {names[n]: arrays[n] for n in arrays if n in names}
    given = {n: -x if n in rule.negated else x for n, x in given.items()}
    if not given:
        return None
    solver = engine.solver(rule.solver, **options)
    one = {n: x[:1] if np.ndim(x) else x for n, x in coefficients.items()}
    masked = engine.simulate(
        solver, keys[:1], values[:1], mask=np.zeros(1, bool), record="final", **one
    )
    other = {"prediction", "output", "diverged_at", "mask", *coefficients}
    fields = [n for n in masked.data_vars if n not in other and "trial" in masked[n].dims]
    assert set(given) <= set(fields), f"{rule.solver} has no state {sorted(set(given))}"
    return {n: given.get(n, masked[n].values) for n in fields}


def compare(arrays, meta, name, ours, tolerance):
    exact = f"{name}_f64"
    expected = arrays.get(exact, arrays[name])
    bound = meta["tolerance_f64"] if exact in arrays else tolerance
    first = meta["valid_from"] if name in ("outputs", "predictions") else 0
    difference = float(np.abs(ours[first:] - expected[first:]).max())
    assert difference <= bound, f"{name}: {difference:.3g} > {bound:.3g}"


@pytest.mark.parametrize("kernel", ["loop", "auto"])
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_golden(path, kernel):
    arrays, meta = read(path)
    if "bandwidth" in meta["expected"]:
        return check_bandwidth(arrays, meta)
    stem = path.stem.partition("__")[0]
    rule = RULES[stem]
    micro, scale = meta["micro_steps"], meta["q_scale"]
    keys, values, queries = arrays["keys"], arrays["values"], arrays["queries"]
    options = {**rule.fixed, **{n: find(arrays, meta) for n, find in rule.read.items()}}
    options |= {ours: arrays[theirs] for theirs, ours in rule.options.items() if theirs in arrays}
    options = {
        n: x.item() if np.ndim(x) == 0 and hasattr(x, "item") else x for n, x in options.items()
    }
    if rule.scale:
        options["scale"], scale = scale, 1.0
    if stem == "linear_attention_normalised":
        keys, queries = arrays["key_features"], arrays["query_features"]
    if stem == "precond_gated_delta":  # the reference normalises keys and queries itself
        keys, queries = ops.unit(keys), ops.unit(queries)
    coefficients = {
        ours: plain(theirs, arrays[theirs])
        for theirs, ours in rule.coefficients.items()
        if theirs in arrays
    }
    if stem == "delta_product":
        options["micro_steps"] = micro
        keys, values, queries, coefficients = flatten(keys, values, queries, coefficients, micro)
    initial = start(rule, arrays, meta, keys, values, options, coefficients)
    ds = engine.simulate(
        engine.solver(rule.solver, **options),
        keys,
        values,
        scale * queries,
        state=initial,
        kernel=kernel,
        **coefficients,
    )
    assert (ds.diverged_at == -1).all()
    output, prediction = ds.output.values[micro - 1 :: micro], ds.prediction.values
    if stem == "nadaraya_watson" and meta["read_order"].startswith("before"):
        output = prediction  # the read at a key before its own pair is written
    compare(arrays, meta, "outputs", output, meta["tolerance"])
    for name in meta["expected"]:
        if name == "predictions":
            compare(arrays, meta, name, prediction, meta["tolerance_state"])
        elif name != "outputs":
            ours = ds[rule.states[name]].isel(step=-1).values
            sign = -1.0 if rule.states[name] in rule.negated else 1.0
            compare(arrays, meta, name, sign * ours, meta["tolerance_state"])


def flatten(keys, values, queries, coefficients, micro):
    """A token of n micro-steps as n steps of the stream; the rule decays at each n-th only."""
    steps, trials = keys.shape[:2]

    def in_time(x):
        return np.moveaxis(x, 2, 1).reshape(steps * micro, trials, *x.shape[3:])

    flat = {"beta": in_time(coefficients["beta"])}
    if "gamma" in coefficients:
        flat["gamma"] = np.repeat(coefficients["gamma"], micro, axis=0)
    return in_time(keys), in_time(values), np.repeat(queries, micro, axis=0), flat


def check_bandwidth(arrays, meta):
    """Leave-one-out bandwidth: our optimum to 1e-3 (meta.notes), our loss and read at theirs."""
    from engine.measure.bandwidth import learn_bandwidth, leave_one_out

    keys, values = arrays["keys"], arrays["values"]
    for b, bandwidth in enumerate(arrays["bandwidth"]):
        loss = leave_one_out(keys[:, b], values[:, b], bandwidth)
        assert abs(loss - arrays["loo_loss"][b]) <= meta["tolerance_state"]
        assert abs(learn_bandwidth(keys[:, b], values[:, b]) - bandwidth) <= 1e-3
        solver = engine.solver("nadaraya_watson", bandwidth=float(bandwidth))
        # A batch read: every pair is stored first, then all queries are asked of masked steps.
        n = len(keys)
        stored = np.arange(2 * n) < n
        ds = engine.simulate(
            solver,
            np.tile(keys[:, b], (2, 1)),
            np.tile(values[:, b], (2, 1)),
            np.tile(arrays["queries"][:, b], (2, 1)),
            mask=stored,
        )
        difference = np.abs(ds.output.values[n:] - arrays["outputs"][:, b]).max()
        assert difference <= meta["tolerance"]


def test_the_folder_is_there_and_every_rule_is_known():
    assert len(FILES) >= 1, f"no golden files in {FOLDER}"
    if "ENGINE_GOLDEN" not in os.environ:
        assert len(FILES) >= 87
    unknown = {p.stem.partition("__")[0] for p in FILES} - set(RULES)
    assert not unknown
