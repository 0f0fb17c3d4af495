"""Measures of a trajectory. Each takes arrays, or DataArrays whose dims it keeps.

Functions of arrays come first; what takes a run does no more than find the arrays. A run of any
size is read in blocks of steps.
"""

from engine.measure import (
    bandwidth,
    capacity,
    divergence,
    laws,
    optimum,
    probed,
    state,
    statistics,
    tracking,
)
from engine.measure.capacity import recalled
from engine.measure.runs import mapped
from engine.measure.tracking import error_curve, prediction_error, smooth, tracking_error

__all__ = [
    "bandwidth", "capacity", "divergence", "error_curve", "laws", "mapped", "optimum",
    "prediction_error", "probed", "recalled", "smooth", "state", "statistics", "tracking",
    "tracking_error",
]  # fmt: skip
