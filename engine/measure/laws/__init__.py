"""Exact laws of recall and tracking: what a simulation should come to, without simulating.

Unless a function says otherwise, keys are independent and isotropic of unit norm, values
independent of them, of zero mean and unit norm, and every pair is written once. A pair's age is
the number of writes after its own. Expectations are over keys and values, exact at finite sizes.
"""

from engine.measure.laws.momentum import (
    momentum_bound,
    momentum_error,
    momentum_growth,
    momentum_limit,
)
from engine.measure.laws.recall import (
    decayed_energy,
    decayed_interference,
    decayed_signal,
    delta_best,
    delta_energy,
    delta_error,
    hebbian_error,
)
from engine.measure.laws.stability import titans_bound, titans_growth
from engine.measure.laws.tracking import (
    decayed_fit_error,
    free_walk_error,
    implicit_gain,
    lms_gain,
    mean_map_error,
    memory_length,
    moments,
    sphere_correlation,
    sphere_walk_error,
    sphere_walk_errors,
)

__all__ = [
    "decayed_energy", "decayed_fit_error", "decayed_interference", "decayed_signal", "delta_best",
    "delta_energy", "delta_error", "free_walk_error", "hebbian_error", "implicit_gain", "lms_gain",
    "mean_map_error", "memory_length", "moments", "momentum_bound", "momentum_error",
    "momentum_growth", "momentum_limit", "sphere_correlation", "sphere_walk_error",
    "sphere_walk_errors", "titans_bound", "titans_growth",
]  # fmt: skip
