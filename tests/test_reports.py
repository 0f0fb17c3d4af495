"""Reports: claims, tables and figures of a plugin, drawn and written by the host."""

import csv
import html.parser
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import publishing, registry
from engine.figures import draw
from engine.reporting import Claim, Curve, Figure, Panel, parts

PLUGIN = '''
from dataclasses import dataclass
from engine.api import Claim, Curve, Figure, Panel, Report, Table, hookimpl, parts

@dataclass(frozen=True)
class Study(Report):
    """How many steps there were."""

    def claims(self, run):
        n = sum(part.run["stream"].sizes["step"] for part in parts(run))
        return [
            Claim("steps", n, published=8.0), Claim("more <steps>", n, 8.0, n + 1, within=0.5),
            Claim("nothing", float("nan"), 8.0, 8.0, within=1e9),
        ]

    def tables(self, run):
        return [Table("sizes", "Sizes", ("what", "how many"), [["a", 3], ["b", 0.25]])]

    def figures(self, run):
        curve = Curve("a & b", [0, 1, 2], [1.0, float("nan"), 3.0], [0, 0, 2], [2, 2, 4])
        return [Figure("one", "A picture.", [Panel("step", "size", [curve])])]

@dataclass(frozen=True)
class Wrong(Report):
    """Nothing good."""

    def claims(self, run):
        return run["parts/7"]

@hookimpl
def engine_reports():
    return {"study": Study, "wrong": Wrong}
'''
SMALL = {
    "report": "study", "trials": 2,
    "stream": {"generator": "random", "steps": 8, "key": 3, "value": 3}, "solvers": {"delta": {}},
}  # fmt: skip


@pytest.fixture
def study(tmp_path, monkeypatch):
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "study.py").write_text(PLUGIN)
    monkeypatch.setenv("ENGINE_PLUGINS_DIR", str(folder))
    registry._cached.cache_clear()


class Page(html.parser.HTMLParser):
    """Collects the rows of a page's tables and whatever it would fetch."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.fetched, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.fetched += [given[name] for name in ("src", "href") if name in given]
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data):
        self.words.append(data)
        if self.rows:
            self.rows[-1].append(data)


def test_a_claim_holds_where_the_number_is_within_of_what_is_expected():
    assert Claim("", 1.0, published=1.1, within=0.11).holds
    assert not Claim("", 1.0, published=1.1, within=0.09).holds
    assert Claim("", 1.0, published=9.0, expected=1.0).holds  # what is expected comes first
    assert not Claim("", 1.0, published=1.0, expected=9.0, within=1.0).holds
    assert not Claim("", np.nan, expected=1.0, within=np.inf).holds
    assert not Claim("", 1.0).holds


def test_a_report_is_one_page_that_fetches_nothing(study, tmp_path):
    run = engine.run(SMALL)
    paths = publishing.publish(run, tmp_path / "out")
    assert [p.name for p in paths] == [
        "report.html", "one.png", "one.svg", "one.csv", "claims.csv", "sizes.csv",
    ]  # fmt: skip
    page = Page(paths[0].read_text())
    assert len(page.fetched) == 1 and page.fetched[0].startswith("data:image/svg+xml;base64,")
    assert ["steps", "8", "-", "8", "0", "yes", ""][:6] in [row[:6] for row in page.rows]
    assert ["more <steps>", "8", "9", "8", "0.5", "NO"] in [row[:6] for row in page.rows]
    assert any("numpy" in row[1] for row in page.rows if row[0] == "versions")
    assert "A picture." in page.words
    with open(tmp_path / "out" / "claims.csv", newline="") as file:
        head, first, second, third = csv.reader(file)
    assert dict(zip(head, first, strict=True)) == {
        "quantity": "steps", "published": "8.0", "expected": "", "ours": "8", "within": "0.0",
        "holds": "yes", "why": "",
    }  # fmt: skip
    assert second[5] == third[5] == "NO"
    points = (tmp_path / "out" / "one.csv").read_text().splitlines()
    assert points[1] == "0,a & b,line,0,1.0,0,2"


def test_the_same_figure_is_the_same_file(study, tmp_path):
    run = engine.run(SMALL)
    for name in ("one", "two"):
        publishing.publish(run, tmp_path / name)
    for kind in ("svg", "png"):
        a, b = ((tmp_path / n / f"one.{kind}").read_bytes() for n in ("one", "two"))
        assert a == b


def test_a_report_sees_every_part_of_a_sweep(study):
    run = engine.run({**SMALL, "sweep": {"stream.steps": [3, 5]}})
    assert [claim.ours for claim in publishing.said(run).claims[:1]] == [8]
    assert [part.settings for part in parts(run)] == [{"stream.steps": 3}, {"stream.steps": 5}]
    single = engine.run(SMALL)
    assert [part.settings for part in parts(single)] == [{}]


def test_a_report_that_fails_is_named(study):
    with pytest.raises(engine.RunError, match="report 'wrong' failed: KeyError"):
        publishing.said(engine.run({**SMALL, "report": "wrong"}))


def test_an_unknown_report_is_refused_before_the_run(study):
    with pytest.raises(engine.InputError, match=r"report = 'studdy'.*did you mean 'study'\?"):
        engine.run({**SMALL, "report": "studdy"})


def test_the_command_prints_what_holds(study, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(
        'report = "study"\ntrials = 2\n[stream]\ngenerator = "random"\nsteps = 8\n[solvers.delta]\n'
    )
    code, out, err = call("run", "s.toml")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert ["steps", "8", "-", "8", "0", "yes"] in rows
    code, again, _ = call("report", "runs/s.zarr", "-o", "out")
    assert code == 0 and "out/report.html" in again.split()
    assert ["steps", "8", "-", "8", "0", "yes"] in [line.split() for line in again.splitlines()]
    code, listed, _ = call("plugins", "list")
    assert any(line.split()[:2] == ["study", "report"] for line in listed.splitlines())
    assert call("plugins", "check", "study")[0] == 0


def test_more_curves_than_colours_stay_apart(tmp_path):
    """Colour, dash and mark together differ for every one of twenty curves."""
    from engine.figures import COLOURS, DASHES, MARKS

    n = len(COLOURS)
    looks = {(i % n, str(DASHES[(i + 2 * (i // n)) % len(DASHES)]), MARKS[i % len(MARKS)])
             for i in range(20)}  # fmt: skip
    assert len(looks) == 20
    assert len({look[:2] for look in looks}) == 20


def test_labels_are_kept_apart():
    from engine.figures import _spread

    for wanted in ([0.0] * 12, [5.0, 5.1, 90.0, 99.0, 99.0], [100.0] * 5, [50.0]):
        place = _spread(np.array(wanted), 8.0, 0.0, 100.0)
        assert (np.diff(place) >= 8.0 * 0.9).all()
        assert place.min() >= -1.0 and place.max() <= 101.0
    np.testing.assert_array_equal(_spread(np.array([1.0, 50.0]), 8.0, 0.0, 100.0), [1.0, 50.0])


def test_any_figure_can_be_drawn(tmp_path):
    x = np.arange(1, 6)
    curves = [
        Curve("points", x, x, x - 0.5, x + 0.5, look="points"), Curve("alone", [2], [3]),
        Curve("", x, 2 * x, look="law", like="points"), Curve("thin", x, x / 2, look="thin"),
        Curve("empty", [], []), Curve("never", x, np.full(5, np.nan)),
    ]  # fmt: skip
    panel = Panel(
        "x", "y", curves, title="t", note="n", log="xy", levels=[(2, "level")], marks=[(3, "mark")],
        x_range=(1, 6), y_range=(0.5, None),
    )  # fmt: skip
    written = draw(Figure("all", "", [panel] * 4, columns=3), tmp_path)
    assert [p.name for p in written] == ["all.png", "all.svg"]
    assert all(p.stat().st_size > 10_000 for p in written)


def test_names_of_crowded_points_cover_nothing(tmp_path, monkeypatch):
    """Neither each other, nor a mark, nor the edge; not even where names outside take room."""
    import matplotlib.pyplot as plt

    kept = []
    monkeypatch.setattr(plt, "close", kept.append)
    rng = np.random.default_rng(0)
    x, y = 10 ** rng.uniform(2, 4, (2, 14))
    points = [
        Curve(f"a name of point {i}", [a], [b], look="points", like="all")
        for i, (a, b) in enumerate(zip(x, y, strict=True))
    ]
    line = Curve("a long name to the right of the axes", [100, 10000], [100, 10000])
    draw(Figure("map", "", [Panel("x", "y", [*points, line], log="xy")]), tmp_path)
    (figure,) = kept
    monkeypatch.undo()
    (axes,) = figure.axes
    figure.canvas.draw()
    names = [t for t in axes.texts if t.get_text().startswith("a name")]
    boxes = [t.get_window_extent().padded(-1) for t in names]
    marks = axes.transData.transform(np.stack([x, y], axis=1))
    plt.close(figure)
    assert len(boxes) == 14
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])
        assert not any(box.contains(*mark) for mark in marks)
        assert box.x1 <= figure.bbox.x1


def test_a_line_of_one_point_is_seen(tmp_path):
    """As many dark pixels as a mark has, beyond those of its name and its axes."""
    plt = pytest.importorskip("matplotlib.pyplot")
    dark = []
    for y in (1.0, float("nan")):
        panel = Panel("x", "y", [Curve("", [1.0], [y])], x_range=(0, 2), y_range=(0, 2))
        path = draw(Figure("one", "", [panel]), tmp_path)[0]
        dark.append(int((plt.imread(path)[..., :3].sum(-1) < 0.3).sum()))
    assert dark[0] - dark[1] > 30


def test_a_run_whose_report_fails_says_where_it_is(study, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(
        'report = "wrong"\n[stream]\ngenerator = "random"\nsteps = 8\nkey = 3\n[solvers.delta]\n'
    )
    code, out, err = call("run", "study.toml", "-o", "kept.zarr")
    assert code == 1 and "report 'wrong' failed" in err
    assert "kept.zarr" in out + err and engine.open("kept.zarr").attrs["status"] == "complete"


def test_errors_of_a_run_in_which_everything_diverged_are_drawn():
    from engine.overview import figures

    run = engine.run({
        "stream": {"generator": "random", "steps": 400, "key": 4},
        "solvers": {"wild": {"solver": "delta", "beta": 9000.0}},
    })  # fmt: skip
    (panel,) = figures(run)[0].panels
    (curve,) = panel.curves
    assert panel.log == "y" and len(curve.x) > 10 and max(curve.y) > 1e50 and curve.x[0] == 0


def test_bands_of_recall_are_over_trials():
    """Queries of a trial share a state: the interval is Student's, over the trials' own shares."""
    from engine.overview import recall

    run = engine.run({
        "trials": 12, "stream": {"generator": "random", "steps": 24, "key": 8, "value": 8},
        "solvers": {"delta": {"beta": 0.5}}, "probes": {"end": {}},
    })  # fmt: skip
    (curve,) = recall(run, "end").curves
    hits = run["probes/end/delta/recalled"].transpose("query", "trial").values
    assert len(curve.x) == 9 and curve.x[0] == 1.0  # 288 answers, at least 30 a bin: ages 0, 1, 2
    newest = hits[-3:]
    want = engine.measure.statistics.estimate(newest.mean(axis=0), over=0)
    assert (curve.y[0], curve.low[0], curve.high[0]) == pytest.approx(
        (want.value, max(want.low, 0), min(want.high, 1))
    )
    (alone,) = recall(
        engine.run({
            "stream": {"generator": "random", "steps": 60, "key": 8, "value": 8},
            "solvers": {"delta": {}}, "probes": {"end": {}},
        }), "end",
    ).curves  # fmt: skip
    assert all(a < b for a, b in zip(alone.low, alone.high, strict=True))
