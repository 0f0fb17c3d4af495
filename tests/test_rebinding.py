"""The overwrite study on its own streams (data/README.md): every answer decodes as published."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import engine

DATA = Path(__file__).parents[1] / "data" / "rebinding.zarr"


@pytest.mark.parametrize(("count", "hits"), [(1, 400), (2, 371), (4, 74), (8, 40)])
def test_titans_decodes_every_key_as_published(count, hits):
    """Published mean recall: 1, .9275, .185, .1 of 50 trials of 8 keys."""
    with xr.open_datatree(DATA, engine="zarr") as tree:
        reference = tree[f"{count}/reference"].to_dataset().load()
    run = engine.run({
        "trials": 50, "record": "final",
        "stream": {"generator": "stored", "path": str(DATA / str(count))},
        "solvers": {"titans": {"theta": 0.5, "eta": 0.9, "alpha": 0.1}},
        "probes": {"recall": {}},
    })  # fmt: skip
    answers, key_id = run["probes/recall"], run["stream/key_id"].values
    wanted, decoded = answers["wanted"].values, answers["titans/decoded"].values
    step, trial = np.nonzero(wanted >= 0)
    at = trial, key_id[step, trial]
    np.testing.assert_array_equal(wanted[step, trial], reference["latest"].values[at])
    np.testing.assert_array_equal(decoded[step, trial], reference["decoded"].values[at])
    assert int(np.nansum(answers["titans/recalled"])) == hits


@pytest.mark.parametrize(("count", "hits"), [(4, 395), (8, 398)])
def test_momentum_that_is_stable_recalls_what_a_plain_loop_recalls(count, hits):
    """Titans at eta = .5: .9875 and .995 of 400."""
    path = DATA / str(count)
    with xr.open_datatree(DATA, engine="zarr") as tree:
        stream = tree[f"{count}/stream"].to_dataset().load().transpose("step", "trial", ...)
        latest = tree[f"{count}/reference/latest"].values
    keys, values = (stream[x].values.astype(float) for x in ("keys", "values"))
    S = U = np.zeros((50, 64, 64))
    for k, v in zip(keys, values, strict=True):
        U = 0.5 * U - k[:, :, None] * (np.einsum("bij,bi->bj", S, k) - v)[:, None]
        S = 0.9 * S + U
    read = np.einsum("bij,sbi->sbj", S, keys)
    decoded = np.einsum("sbj,bmj->sbm", read, stream["value_book"].values).argmax(axis=-1)
    key_id, trial = stream["key_id"].values, np.arange(50)
    right = decoded == latest[trial, key_id]  # asked at every visit: each key `count` times
    assert right.sum() == hits * count
    run = engine.run({
        "trials": 50, "record": "final", "stream": {"generator": "stored", "path": str(path)},
        "solvers": {"titans": {"theta": 0.5, "eta": 0.5, "alpha": 0.1}}, "probes": {"recall": {}},
    })  # fmt: skip
    assert int(np.nansum(run["probes/recall/titans/recalled"])) == hits
