"""Reports: what a study says of its run, written as pictures, tables and one page."""

from __future__ import annotations

import base64
import csv
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import factories, overview
from engine.errors import InputError, RunError
from engine.reporting import Claim, Figure, Report, Table, parts
from engine.sealed import mark

if TYPE_CHECKING:
    import xarray as xr

CLAIMS = ("quantity", "published", "expected", "ours", "within", "holds", "why")
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #111; background: #fff; margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }}
th, td {{ padding: .2rem .8rem; border-bottom: 1px solid #ddd; text-align: left; }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
tr.no td {{ background: #fbe3d6; font-weight: 600; }}
img {{ max-width: 100%; }} figure {{ margin: 2rem 0; }} figcaption {{ max-width: 50rem; }}
pre {{ background: #f4f4f4; padding: 1rem; overflow-x: auto; font-size: 13px; }}
p.mark {{ border-left: 4px solid #D55E00; padding-left: 1rem; font-weight: 600; }}
</style></head><body>
{body}
</body></html>
"""


@dataclass(frozen=True)
class Said:
    """What a report says of a run."""

    claims: Sequence[Claim]
    tables: Sequence[Table]
    figures: Sequence[Figure]


def said(run: xr.DataTree, figures: bool = True) -> Said:
    """Return what a run's own report says of it, or, without one, what any run shows.

    Raises
    ------
    InputError
        If the run has no steps, or its report is not installed.
    RunError
        If the report fails.
    """
    if not any(part.run["stream"].sizes["step"] for part in parts(run)):
        raise InputError("the run has no steps: there is nothing to draw")
    name = run.attrs["scenario"]["resolved"].get("report")
    if name is None:
        return Said([], [], [] if not figures or "parts" in run.children else overview.figures(run))
    report: Report = factories.build("report", name, {})
    try:
        drawn = report.figures(run) if figures else ()
        return Said(report.claims(run), report.tables(run), drawn)
    except Exception as error:  # a stranger's report may raise anything
        raise RunError(
            f"report {name!r} failed: {type(error).__name__}: {error}; is the run complete, "
            "and its scenario the one that the report is for?"
        ) from error


def table(claims: Sequence[Claim]) -> Table:
    """Return claims as a table."""
    rows = [
        [c.what, c.published, c.expected, c.ours, c.within, "yes" if c.holds else "NO", c.why]
        for c in claims
    ]
    return Table("claims", "Published, expected, and found", CLAIMS, rows)


def publish(run: xr.DataTree, folder: Path) -> list[Path]:
    """Write a run's report: report.html, and every table and figure as a file of its own.

    Parameters
    ----------
    run : DataTree
        A run, or a sweep.
    folder : Path
        Where to; made if missing.

    Returns
    -------
    list of Path
        What was written, the page first.

    Raises
    ------
    InputError
        If matplotlib is missing, the folder cannot be made, or the run has no steps.
    """
    from engine.figures import draw

    content = said(run)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made a folder: {error.strerror}") from error
    tables = ([table(content.claims)] if content.claims else []) + list(content.tables)
    paths, pictures = [], {}
    for figure in content.figures:
        drawn = draw(figure, folder, " ".join(marks(run)))
        pictures[figure.name] = drawn[1].read_bytes()
        paths += [*drawn, _csv(folder, _points(figure))]
    paths += [_csv(folder, one) for one in tables]
    page = folder / "report.html"
    page.write_text(_page(run, tables, content.figures, pictures), encoding="utf-8")
    return [page, *paths]


def _points(figure: Figure) -> Table:
    """Return every point of a figure."""
    rows = []
    for i, panel in enumerate(figure.panels):
        for curve in panel.curves:
            n = len(curve.x)
            low, high = ([""] * n if z is None else z for z in (curve.low, curve.high))
            for point in zip(curve.x, curve.y, low, high, strict=True):
                rows.append([panel.title or i, curve.label, curve.look, *point])
    return Table(
        figure.name, figure.caption, ("panel", "curve", "look", "x", "y", "low", "high"), rows
    )


def _csv(folder: Path, one: Table) -> Path:
    path = folder / f"{one.name}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(one.columns)
        rows.writerows([repr(float(x)) if _is_number(x) else x for x in row] for row in one.rows)
    return path


def _is_number(x: Any) -> bool:
    return hasattr(x, "__float__") and not isinstance(x, (bool, int, str))


def told(x: Any) -> str:
    """Return a cell of a table as text.

    >>> told(0.13771234), told(None), told(9.1e-15), told("a"), told(1200)
    ('0.137712', '-', '9.1e-15', 'a', '1200')
    """
    if x is None:
        return "-"
    return f"{float(x):.6g}" if _is_number(x) else str(x)


def _page(
    run: xr.DataTree, tables: Iterable[Table], figures: Iterable[Figure], pictures: dict[str, bytes]
) -> str:
    scenario, text = run.attrs["scenario"], html.escape
    title = scenario["resolved"]["title"] or scenario["name"]
    body = [f"<h1>{text(title)}</h1>"]
    body += [f'<p class="mark">{text(mark)}</p>' for mark in marks(run)]
    for one in tables:
        head = "".join(f"<th>{text(c)}</th>" for c in one.columns)
        rows = "".join(_row(row) for row in one.rows)
        body.append(f"<h2>{text(one.title)}</h2><table><tr>{head}</tr>{rows}</table>")
    for figure in figures:
        data = base64.b64encode(pictures[figure.name]).decode()
        body.append(
            f'<figure><img alt="{text(figure.name)}" src="data:image/svg+xml;base64,{data}">'
            f"<figcaption>{text(figure.caption)}</figcaption></figure>"
        )
    facts = {k: x for k, x in run.attrs["provenance"].items() if k != "conventions"}
    facts["status"] = run.attrs["status"]
    rows = "".join(_row([key, str(x)]) for key, x in facts.items())
    body.append(f"<h2>Provenance</h2><table>{rows}</table>")
    body.append(
        f"<h2>Scenario</h2><pre>{text(scenario['text'] or str(scenario['resolved']))}</pre>"
    )
    return PAGE.format(title=text(title), body="\n".join(body))


def _row(row: Sequence[Any]) -> str:
    cells = "".join(
        f'<td class="{"number" if _is_number(x) or isinstance(x, int) else ""}">'
        f"{html.escape(told(x))}</td>"
        for x in row
    )
    return f"<tr{' class=no' if 'NO' in row else ''}>{cells}</tr>"


def marks(run: xr.DataTree) -> list[str]:
    """Return what must be said above everything else that a run shows."""
    found = [sealed] if (sealed := mark(run.attrs)) else []
    if run.attrs["status"] != "complete":
        found.append(f"This run is not complete: its status is {run.attrs['status']!r}.")
    return found
