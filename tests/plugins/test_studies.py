"""Every study comes out: its numbers beside the published ones, and its figures."""

import pytest

import engine
from engine import publishing

STUDIES = (
    "ages",
    "audit",
    "bandwidth",
    "capacity",
    "deep_memory",
    "drift",
    "implicit",
    "momentum",
    "prefix",
    "rebinding",
    "spectrum",
    "tracking",
    "widths",
)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_s_claims_hold(name, tmp_path):
    said = publishing.said(engine.run(name))
    assert said.claims
    wrong = [claim for claim in said.claims if not claim.holds]
    assert not wrong
    names = [x.name for x in (*said.tables, *said.figures)]
    assert len(set(names)) == len(names), "one would overwrite the other"


def test_every_report_that_ships_belongs_to_a_study():
    assert set(engine.reports()) == set(STUDIES)
