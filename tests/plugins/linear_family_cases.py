"""The rules of the linear family, and one random stream with gates of every shape for them."""

import numpy as np

import engine

T, B, DK, DV = 40, 3, 5, 4
FAMILY = (
    "comba delta delta_product dplr gated_delta gdn2 gla kaczmarz kda lightning linear_attention "
    "lms longhorn longhorn_diagonal longhorn_momentum mamba mamba2 momentum_delta nlms oja "
    "preconditioned_kda preconditioned_gated_delta retnet rwkv6 rwkv7 titans"
).split()
VECTORS = {"dplr": ["a", "b"]} | {n: ["erase_key"] for n in ("rwkv7", "comba", "momentum_delta")}


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


class Draw:
    """One random stream, and gates of every shape for it."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.k, self.q, self.p = (self.rng.normal(size=(T, B, DK)) / DK**0.5 for _ in range(3))
        self.v = self.rng.normal(size=(T, B, DV))
        self.unit = unit(self.k)
        self.hot = np.eye(DK)[self.rng.integers(DK, size=(T, B))]
        self.beta, self.gamma, self.eta, self.alpha = self.rng.uniform(size=(4, T, B))
        self.gammas, self.gates = self.rng.uniform(size=(2, T, B, DK))
        self.dt, self.gamma_v = self.rng.uniform(size=(2, T, B, DV))
        self.bv, self.bk = self.beta[..., None] * self.v, self.beta[..., None] * self.k

    def __call__(self, name, k=None, v=None, options=(), **coefficients):
        solver = engine.solver(name, **dict(options))
        k, v = self.k if k is None else k, self.v if v is None else v
        return engine.simulate(solver, k, v, self.q, **coefficients)

    def vectors(self, name):
        """What a rule needs that has no default."""
        return {x: 0.4 * self.rng.normal(size=(T, B, DK)) for x in VECTORS.get(name, ())}
