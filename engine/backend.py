"""Array libraries by name: where solvers compute. The only file that names CuPy."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import InputError, nearest

BACKENDS = ("numpy", "cupy", "array_api_strict")


@dataclass(frozen=True)
class Backend:
    """An array namespace and the way to it and back.

    Parameters
    ----------
    name : str
        "numpy", "cupy", or "array_api_strict" (a strict stand-in for a device, for tests).
    xp : module
        Array namespace.
    device : optional
        Device that arrays are made on.
    """

    name: str
    xp: Any
    device: Any = None

    @property
    def launches_dear(self) -> bool:
        """Whether a call costs more than the arithmetic of a small array: true of a GPU."""
        return self.name == "cupy"

    def put(self, array: np.ndarray, dtype: Any) -> Any:
        """Return a host array on the device, as `dtype` if it is floating."""
        if self.name == "numpy":
            return np.ascontiguousarray(array, dtype=dtype)
        array = np.ascontiguousarray(array, dtype=dtype)
        return self.xp.asarray(array, device=self.device) if self.device else self.xp.asarray(array)

    def get(self, array: Any) -> np.ndarray:
        """Return an array of this backend as a NumPy array."""
        if self.name == "cupy":
            return np.asarray(array.get())
        if self.name == "array_api_strict":
            array = self.xp.asarray(array, device=self.xp.Device("CPU_DEVICE"))
        return np.asarray(array)

    def dtype(self, name: str) -> Any:
        """Return this library's dtype of a given name."""
        return np.dtype(name) if self.name == "numpy" else getattr(self.xp, name)


def backend(name: str = "numpy") -> Backend:
    """Return a backend by name.

    Raises
    ------
    InputError
        If the name is unknown, the library is not installed, or CuPy finds no GPU.
    """
    if name == "numpy":
        return Backend("numpy", np)
    if name == "array_api_strict":
        strict = importlib.import_module("array_api_strict")
        return Backend(name, strict, strict.Device("device1"))
    if name == "cupy":
        return _cupy()
    raise InputError(f"no backend is named {name!r}; {nearest(name, BACKENDS)}")


def _cupy() -> Backend:
    try:
        import cupy
    except ImportError as error:
        raise InputError(
            "backend 'cupy' needs CuPy, which is not installed: install the extra for your CUDA "
            "(pip install 'ttr-engine[gpu13]' or 'ttr-engine[gpu12]'), or use backend 'numpy'"
        ) from error
    # Importing CuPy succeeds without a GPU; only this asks the driver.
    if not cupy.is_available():
        raise InputError(
            "backend 'cupy': CuPy is installed but finds no GPU: check that nvidia-smi lists one "
            "(driver) and that CUDA_VISIBLE_DEVICES does not hide it, or use backend 'numpy'"
        )
    return Backend("cupy", importlib.import_module("array_api_compat.cupy"))


def host(array: Any) -> np.ndarray:
    """Return an array of any known library as a NumPy array."""
    return np.asarray(array.get() if type(array).__module__.partition(".")[0] == "cupy" else array)
