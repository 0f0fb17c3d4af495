"""Mistakes in a scenario's file, its top level and its stream: the text, and what is said."""

from .scenario_cases import more, stream, top

STREAM_MISTAKES = {
    # ------------------------------------------------------------------------------ the file
    "not TOML": ("hello", ["s.toml: not TOML: Expected '=' after a key", "(at end of document)"]),
    "not TOML, a line": (more("beta = 1\n"), ["s.toml: not TOML: ", "line 10"]),
    "empty": ("", ["s.toml: stream: missing", "solvers: missing"]),
    # --------------------------------------------------------------------------- the top level
    "key misspelt": (
        stream("title", "ttle"),
        ["s.toml: ttle = 'good': no such key; did you mean 'title'? Known: backend, dtype, kernel"],
    ),
    "table misspelt": (
        stream("solvers.delta", "solver.delta"),
        ["s.toml: solver = {'delta': {'beta': 0.5}}: no such key; did you mean 'solvers'?"],
    ),
    "no stream": (
        "[solvers.delta]\n",
        ["s.toml: stream: missing; a scenario needs [stream] and [solvers.<label>]"],
    ),
    "no solvers": (
        '[stream]\ngenerator = "random"\n',
        ["s.toml: solvers: missing; a scenario needs [stream] and [solvers.<label>]"],
    ),
    "not one solver": (
        '[stream]\ngenerator = "random"\n[solvers]\n',
        ["s.toml: solvers: missing; a scenario needs [stream] and [solvers.<label>]"],
    ),
    "stream is a value": (
        "stream = 3\n[solvers.delta]\n",
        ["s.toml: stream = 3: must be a table"],
    ),
    "solver is a value": (
        stream("[solvers.delta]\nbeta", "[solvers]\ndelta"),
        ["s.toml: solvers.delta = 0.5: must be a table"],
    ),
    "title is a number": (top("title = 3"), ["s.toml: title = 3: must be a string"]),
    "seed below 0": (top("seed = -1"), ["s.toml: seed = -1: must be greater than or equal to 0"]),
    "seed with a point": (top("seed = 1.5"), ["s.toml: seed = 1.5: must be a whole number"]),
    "seed in quotes": (top('seed = "1"'), ["s.toml: seed = '1': must be a whole number"]),
    "seed nan": (top("seed = nan"), ["s.toml: seed = nan: must be a"]),
    "no trials": (top("trials = 0"), ["s.toml: trials = 0: must be greater than 0"]),
    "trials true": (top("trials = true"), ["s.toml: trials = True: must be a whole number"]),
    "dtype unknown": (
        top('dtype = "flaot32"'),
        ["s.toml: dtype = 'flaot32'", "did you mean 'float32'? Known: float32, float64"],
    ),
    "record unknown": (
        top('record = "evry"'),
        ["s.toml: record = 'evry'", "did you mean 'every'? Known: every, final"],
    ),
    "backend unknown": (
        top('backend = "nunpy"'),
        ["s.toml: backend = 'nunpy'", "did you mean 'numpy'?", "cupy"],
    ),
    "backend a number": (top("backend = 3"), ["s.toml: backend = 3: must be a string"]),
    "two at once": (
        stream("title", "ttle") + '[probes.recall]\nask = "kyes"\n',
        ["ttle = 'good': no such key", "probes.recall.ask = 'kyes'", "did you mean 'keys'"],
    ),
    # ------------------------------------------------------------------------------ the stream
    "no generator": (
        stream('generator = "random"\n', ""),
        ["s.toml: stream.generator: missing; Known: ", "drifting, "],
    ),
    "generator unknown": (
        stream('"random"', '"randm"'),
        ["s.toml: stream.generator = 'randm': no generator is named 'randm'; did you mean 'ran"],
    ),
    "generator a number": (
        stream('"random"', "3"),
        ["s.toml: stream.generator = 3: must be the name of a generator; Known: ", "drifting, "],
    ),
    "a solver as generator": (
        stream('"random"', '"rls"'),
        ["s.toml: stream.generator = 'rls': no generator is named 'rls'; Known: "],
    ),
    "option misspelt": (
        stream("priority", "prioriti"),
        ["s.toml: stream.prioriti = 0.5: random takes no 'prioriti'; did you mean 'priority'?"],
    ),
    "steps misspelt": (
        stream("steps", "stps"),
        ["s.toml: stream.stps = 20: random takes no 'stps'; did you mean 'steps'?"],
    ),
    "option of wrong type": (
        stream("key = 4", 'key = "four"'),
        ["s.toml: stream.key = 'four': must be a whole number"],
    ),
    "option with a point": (
        stream("key = 4", "key = 4.5"),
        ["s.toml: stream.key = 4.5: must be a whole number"],
    ),
    "option true": (
        stream("key = 4", "key = true"),
        ["s.toml: stream.key = True: must be a whole number"],
    ),
    "flag a number": (
        stream("key = 4", "exact = 1"),
        ["s.toml: stream.exact = 1: must be true or false"],
    ),
    "option out of range": (
        stream("priority = 0.5", "priority = 1.5"),
        ["s.toml: stream.priority = 1.5 must be in [0, 1]"],
    ),
    "option nan": (
        stream("priority = 0.5", "priority = nan"),
        ["s.toml: stream.priority = nan must be in [0, 1]"],
    ),
    "option infinite": (
        '[stream]\ngenerator = "drifting"\nsteps = 3\nnoise = inf\n[solvers.delta]\n',
        ["s.toml: stream.noise = inf must be finite and at least 0"],
    ),
    "no channels": (stream("key = 4", "key = 0"), ["s.toml: stream.key = 0 must be at least 1"]),
    "choice unknown": (
        stream("key = 4", 'keys = "gausian"'),
        ["s.toml: stream.keys = 'gausian'", "did you mean 'gaussian'? Known: gaussian, sign, unit"],
    ),
    "steps below 0": (
        stream("steps = 20", "steps = -2"),
        ["s.toml: stream.steps = -2: must be a whole number, 0 or more"],
    ),
    "steps in quotes": (
        stream("steps = 20", 'steps = "20"'),
        ["s.toml: stream.steps = '20': must be a whole number, 0 or more"],
    ),
    "steps true": (stream("steps = 20", "steps = true"), ["s.toml: stream.steps = True: must be"]),
    "endless": (
        stream("steps = 20\n", ""),
        ["s.toml: stream.steps: missing; this generator is endless"],
    ),
    "more than the generator has": (
        '[stream]\ngenerator = "orthonormal"\nkey = 4\nsteps = 5\n[solvers.delta]\n',
        ["s.toml: stream: ", "orthonormal", "4 steps", "5 were asked for", "4 orthonormal vectors"],
    ),
    "more than the disk has": (
        stream("steps = 20", "steps = 1_000_000_000_000"),
        ["s.toml: stream.steps: 1,000,000,000,000 steps of ", "do not fit", 'record = "final"'],
    ),
    "more than an integer has": (
        stream("steps = 20", "steps = 100_000_000_000_000_000_000"),
        ["s.toml: stream.steps: 100,000,000,000,000,000,000 steps of ", "do not fit into the "],
    ),
    "exact without an end": (
        stream("steps = 20", "exact = true"),
        ["s.toml: stream: exact = True needs a stream of known length: give a number of steps"],
    ),
    "a file without a path": (
        '[stream]\ngenerator = "stored"\n[solvers.delta]\n',
        ["s.toml: stream: stored needs 'path', which is not given"],
    ),
    "a file that is not there": (
        '[stream]\ngenerator = "stored"\npath = "no.zarr"\n[solvers.delta]\n',
        ["s.toml: stream.path = no.zarr cannot be read as a zarr v3 group: nothing is there"],
    ),
    "a path that is a number": (
        '[stream]\ngenerator = "stored"\npath = 3\n[solvers.delta]\n',
        ["s.toml: stream.path = 3: must be a Path"],
    ),
}
