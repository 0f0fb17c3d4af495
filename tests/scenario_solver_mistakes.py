"""Mistakes in a scenario's solvers, coefficients and probes: the text, and what is said."""

import json

from .scenario_cases import LABEL, beta, more, stream

SOLVERS = "delta, least_squares"
FORMS = "Known: channel, gate, schedule, trials"


SOLVER_MISTAKES = {
    # ------------------------------------------------------------------------------- a solver
    "solver unknown": (
        stream("beta = 0.5", 'solver = "dleta"'),
        [
            "s.toml: solvers.delta.solver = 'dleta': no solver is named 'dleta'; did you mean "
            "'delta'? Known: ",
            SOLVERS[:5],
        ],
    ),
    "label for a solver": (
        stream("solvers.delta", "solvers.mine"),
        ["s.toml: solvers.mine (without a key 'solver', the label is the name): no solver is nam"],
    ),
    "solver a number": (
        stream("beta = 0.5", "solver = 3"),
        ["s.toml: solvers.delta.solver = 3: must be the name of a solver; Known: "],
    ),
    **{
        f"label {label!r}": (
            stream("solvers.delta", f"solvers.{json.dumps(label, ensure_ascii=False)}"),
            [f"s.toml: solvers: {label!r} {LABEL}"],
        )
        for label in ("a/b", "", "..", "zarr.json", "a b", "κ", "9", "_a", "a\n")
    },
    "option and coefficient unknown": (
        stream("beta", "betta"),
        ["s.toml: solvers.delta.betta = 0.5: delta takes no 'betta'; did you mean 'beta'?"],
    ),
    "a coefficient of other solvers": (
        stream("beta = 0.5", "gamma = 0.5"),
        [
            "s.toml: solvers.delta.gamma = 0.5: delta takes no 'gamma'; Known: beta, solver, "
            "state, view"
        ],
    ),
    "hyperparameter of wrong type": (
        more('[solvers.rls]\nridge = "little"\n'),
        ["s.toml: solvers.rls.ridge = 'little': must be a number"],
    ),
    "hyperparameter a list": (
        more("[solvers.rls]\nridge = [1.0]\n"),
        ["s.toml: solvers.rls.ridge = ", "must be a number"],
    ),
    "hyperparameter out of range": (
        more("[solvers.rls]\nridge = -1.0\n"),
        ["s.toml: solvers.rls.ridge = -1.0 must be above 0"],
    ),
    "hyperparameter nan": (
        more("[solvers.rls]\nridge = nan\n"),
        ["s.toml: solvers.rls.ridge = nan must be above 0"],
    ),
    "the label names the plugin too": (
        more('[solvers.mine]\nsolver = "rls"\nridge = 0\n'),
        ["s.toml: solvers.mine.ridge = 0", "must be above 0"],
    ),
    "view unknown": (
        more('view = "unt"\n'),
        ["s.toml: solvers.delta.view = 'unt': no view is named 'unt'; did you mean 'unit'? Known"],
    ),
    "view a number": (
        more("view = 3\n"),
        ["s.toml: solvers.delta.view = 3: must be the name of a view; Known: "],
    ),
    "view option": (
        more('view = { view = "unit", eps = 3 }\n'),
        ["s.toml: solvers.delta.view.eps = 3: unit takes no 'eps'; "],
    ),
    "view without a name": (
        more("view = { eps = 3 }\n"),
        ["s.toml: solvers.delta.view.view: missing; Known: "],
    ),
    # -------------------------------------------------------------------------- a coefficient
    "below its bound": (
        beta("-0.5"),
        ["s.toml: solvers.delta.beta = -0.5: beta = -0.5 must be at least 0"],
    ),
    "above its bound": (
        more("[solvers.rls]\ngamma = 1.5\n"),
        ["s.toml: solvers.rls.gamma = 1.5: gamma = 1.5 must be in (0, 1]"],
    ),
    "a hair above its bound": (
        more("[solvers.rls]\ngamma = 1.00000001\n"),
        ["gamma = 1.00000001 must be in (0, 1]"],
    ),
    "on an open bound": (
        more("[solvers.rls]\ngamma = 0\n"),
        ["s.toml: solvers.rls.gamma = 0", "must be in (0, 1]"],
    ),
    "nan": (beta("nan"), ["s.toml: solvers.delta.beta = nan: must be finite"]),
    "infinite": (beta("inf"), ["s.toml: solvers.delta.beta = inf: must be finite"]),
    "text": (
        beta('"much"'),
        ["s.toml: solvers.delta.beta = 'much': must be a number or a table such as { gate = ...,"],
    ),
    "true": (beta("true"), ["s.toml: solvers.delta.beta = True: must be a number or a table"]),
    "a date": (beta("2024-01-01"), ["solvers.delta.beta = ", "must be a number or a table"]),
    "a list": (
        beta("[0.1, 0.2]"),
        ["s.toml: solvers.delta.beta = [0.1, 0.2]: ", "for one value per trial write { trials = "],
    ),
    "an empty table": (
        beta("{}"),
        [f"s.toml: solvers.delta.beta = {{}}: a table needs one of the forms; {FORMS}"],
    ),
    "form misspelt": (
        beta('{ gat = "priority", low = 0.0, high = 1.0 }'),
        ["solvers.delta.beta = {'gat'", f"needs one of the forms; did you mean 'gate'? {FORMS}"],
    ),
    "two forms": (
        beta('{ schedule = "linear", gate = "priority" }'),
        ["solvers.delta.beta = {", "has both 'schedule' and 'gate'; give one of them"],
    ),
    "gate key misspelt": (
        beta('{ gate = "priority", low = 0.0, hgh = 1.0 }'),
        ["gate = 'priority' takes no 'hgh'; did you mean 'high'? Known: gate, high, low"],
    ),
    "gate incomplete": (
        beta('{ gate = "priority", low = 0.0 }'),
        ["s.toml: solvers.delta.beta = {'gate': 'priority', 'low': 0.0}: gate needs 'high' too"],
    ),
    "gate on a missing channel": (
        beta('{ gate = "prority", low = 0.0, high = 1.0 }'),
        [
            "s.toml: solvers.delta.beta = {'gate': 'prority'",
            "the stream has no side channel 'prority' of one number per step; did you mean "
            "'priority'? Known: age, binding, key_id, priority, value_id",
        ],
    ),
    "gate on vectors": (
        beta('{ gate = "keys", low = 0.0, high = 1.0 }'),
        ["the stream has no side channel 'keys' of one number per step"],
    ),
    "gate out of bounds below": (
        beta('{ gate = "priority", low = -1, high = 1 }'),
        ["solvers.delta.beta = {'gate': 'priority', 'low': -1", "low = -1 must be at least 0"],
    ),
    "gate out of bounds above": (
        more('[solvers.rls]\ngamma = { gate = "priority", low = 0.5, high = 2 }\n'),
        ["solvers.rls.gamma = {", "high = 2 must be in (0, 1]"],
    ),
    "gate nan": (
        beta('{ gate = "priority", low = nan, high = 1.0 }'),
        ["solvers.delta.beta = {", "low = nan: must be finite"],
    ),
    "gate of text": (
        beta('{ gate = "priority", low = "no", high = 1.0 }'),
        ["solvers.delta.beta = {", "low = 'no': must be a number"],
    ),
    "channel missing": (
        beta('{ channel = "prio" }'),
        [
            "solvers.delta.beta = {'channel': 'prio'}: the stream has no side channel 'prio'",
            "Known",
        ],
    ),
    "channel a number": (
        beta("{ channel = 3 }"),
        ["solvers.delta.beta = {'channel': 3}: channel = 3: must be a string"],
    ),
    "too many for the trials": (
        beta("{ trials = [0.1, 0.2] }"),
        ["solvers.delta.beta = {'trials': [0.1, 0.2]}: 2 values for 1 trials", "trials = 2"],
    ),
    "no trials' values": (
        beta("{ trials = [] }"),
        ["solvers.delta.beta = {'trials': []}: trials = []: must have at least 1 item"],
    ),
    "a trial's value of text": (
        beta('{ trials = ["a"] }'),
        ["solvers.delta.beta = {'trials': ['a']}: trials.0 = 'a': must be a number"],
    ),
    "a trial's value out of bounds": (
        "trials = 3\n" + beta("{ trials = [0.5, 0.5, -1.0] }"),
        ["solvers.delta.beta = {'trials'", "beta = -1, trial 2 must be at least 0"],
    ),
    "trials' values nan": (
        beta("{ trials = [nan] }"),
        ["solvers.delta.beta = {'trials': [nan]}", "trials.0 = nan: must be finite"],
    ),
    "schedule incomplete": (
        beta('{ schedule = "linear", start = 1.0, stop = 0.0 }'),
        ["solvers.delta.beta = {'schedule': 'linear'", ": schedule needs 'over' too"],
    ),
    "schedule unknown": (
        beta('{ schedule = "linea", start = 1.0, stop = 0.1, over = 3 }'),
        ["schedule = 'linea'", "did you mean 'linear'? Known: cosine, exponential, linear"],
    ),
    "schedule over nothing": (
        beta('{ schedule = "linear", start = 1.0, stop = 0.1, over = 0 }'),
        ["over = 0: must be greater than 0"],
    ),
    "schedule through zero": (
        beta('{ schedule = "exponential", start = 1.0, stop = 0.0, over = 3 }'),
        ["an exponential schedule needs start and stop above 0"],
    ),
    "schedule out of bounds": (
        beta('{ schedule = "linear", start = 1.0, stop = -0.1, over = 3 }'),
        ["solvers.delta.beta = {'schedule'", "beta = -0.1 at step 3 must be at least 0"],
    ),
    # ------------------------------------------------------------------------------- a probe
    "probe key": (
        more('[probes.recall]\nasks = "keys"\n'),
        ["s.toml: probes.recall.asks = 'keys': no such key; did you mean 'ask'? Known: ask, at"],
    ),
    "probe choice": (
        more('[probes.recall]\nask = "kys"\n'),
        ["s.toml: probes.recall.ask = 'kys'", "did you mean 'keys'? Known: codebook, keys"],
    ),
    "probe a value": (
        more("[probes]\nrecall = 3\n"),
        ["s.toml: probes.recall = 3: must be a table"],
    ),
    "probe at no time": (
        more('[probes.recall]\nat = "ned"\n'),
        ["s.toml: probes.recall.at = 'ned'", "did you mean 'end'? Known: end"],
    ),
    "probe at two times": (
        more("[probes.recall]\nevery = 4\nsteps = [4]\n"),
        ["s.toml: probes.recall = ", "has both 'every' and 'steps'; give one of them"],
    ),
    "probe of two kinds": (
        more('[probes.recall]\nask = "keys"\nqueries = [[0.0, 0.0, 0.0, 1.0]]\n'),
        ["s.toml: probes.recall = ", "has both 'ask' and 'queries'; give one of them"],
    ),
    "probe too late": (
        more("[probes.recall]\nsteps = [4, 40]\n"),
        ["s.toml: probes.recall: steps = [4, 40]: the stream has only 20 steps"],
    ),
    "probe too rarely": (
        more("[probes.recall]\nevery = 21\n"),
        ["s.toml: probes.recall: every = 21: the stream has only 20 steps"],
    ),
    "probe never": (
        more("[probes.recall]\nevery = 0\n"),
        ["s.toml: probes.recall.every = 0: must be greater than 0"],
    ),
    "probe backwards": (
        more("[probes.recall]\nsteps = [8, 4]\n"),
        ["s.toml: probes.recall.steps = [8, 4]: must be numbers of steps, each larger than"],
    ),
    "probe decoding": (
        more('[probes.recall]\ndecode = "cosin"\n'),
        ["probes.recall.decode = 'cosin'", "did you mean 'cosine'? Known: cosine, distance, dot"],
    ),
    "probe of a book that is not": (
        more('[probes.recall]\nask = "codebook"\n'),
        ['s.toml: probes.recall: ask = "codebook": this stream has no key_book'],
    ),
    "queries that are no numbers": (
        more('[probes.recall]\nqueries = [["a"]]\n'),
        ["s.toml: probes.recall.queries = [['a']]: must be a path, or a list of lists of numbers"],
    ),
    "queries of two lengths": (
        more("[probes.recall]\nqueries = [[1.0], [1.0, 2.0]]\n"),
        ["s.toml: probes.recall.queries = ", "all of one length"],
    ),
    "queries of another length": (
        more("[probes.recall]\nqueries = [[1.0, 2.0]]\n"),
        ["s.toml: probes.recall: queries = [...]: float64 of shape (1, 2)", "(query, 4)"],
    ),
    "queries that are not there": (
        more('[probes.recall]\nqueries = "no.npy"\n'),
        ["s.toml: probes.recall: queries = no.npy: does not exist; give an npy or npz file"],
    ),
    "probe label": (more('[probes."a/b"]\n'), [f"s.toml: probes: 'a/b' {LABEL}"]),
    "a label that a probe needs": (
        more('[solvers.wanted]\nsolver = "rls"\n[probes.recall]\n'),
        ["s.toml: solvers.wanted: a probe stores 'wanted' beside its answers; rename the label"],
    ),
}
