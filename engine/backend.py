"""Array libraries by name: where solvers compute. The only file that names CuPy."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
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
        array = np.ascontiguousarray(array, dtype=dtype)
        if self.name == "numpy":
            return array
        # CuPy stages the copy in page-locked memory, queues it, and keeps the stage until it ran.
        return self.xp.asarray(array, device=self.device) if self.device else self.xp.asarray(array)

    def lend(self, array: np.ndarray, dtype: Any, block: object) -> Any:
        """Return an array of a block on the device, copied once for all solvers that read it.

        On the host nobody can write into it.
        """
        if self._lent.get("block") is not block:
            self._lent.clear()
            self._lent["block"] = block
        key = id(array), np.dtype(dtype).name
        if key not in self._lent:
            lent = self.put(array.view(), dtype)
            if isinstance(lent, np.ndarray):
                lent.flags.writeable = False
            self._lent[key] = array, lent
        return self._lent[key][1]

    @cached_property
    def _lent(self) -> dict[Any, Any]:
        return {}

    def get(self, array: Any) -> np.ndarray:
        """Return an array of this backend as a NumPy array."""
        return host(array)

    def fetch(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return what a block came to as NumPy arrays; host arrays among them stay as they are.

        From a GPU all of them are copied on a stream of their own, queued at once.
        """
        if self.name != "cupy":
            return {n: x if isinstance(x, np.ndarray) else self.get(x) for n, x in arrays.items()}
        cupy, cupyx = importlib.import_module("cupy"), importlib.import_module("cupyx")
        # The copies wait for the work queued so far, and for nothing that is queued later.
        self._copies.wait_event(cupy.cuda.get_current_stream().record())
        there = {n: x for n, x in arrays.items() if not isinstance(x, np.ndarray) and x.size}
        # Only into page-locked memory is a copy asynchronous.
        here = {n: cupyx.empty_pinned(x.shape, x.dtype) for n, x in there.items()}
        for name, x in there.items():
            x.get(stream=self._copies, out=here[name], blocking=False)
        # The device arrays live until here: their memory is not handed out while it is read.
        self._copies.synchronize()
        return {n: here[n] if n in here else host(x) for n, x in arrays.items()}

    @cached_property
    def _copies(self) -> Any:
        return importlib.import_module("cupy").cuda.Stream(non_blocking=True)

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
        try:
            strict = importlib.import_module("array_api_strict")
        except ImportError as error:
            raise InputError(
                "backend 'array_api_strict' needs array-api-strict: pip install 'ttr-engine[test]'"
            ) from error
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
    """Return an array of any known library, wherever it lives, as a NumPy array."""
    library = type(array).__module__.partition(".")[0]
    if library == "cupy":
        array = array.get()
    elif library == "array_api_strict":
        array = array.to_device(type(array.device)("CPU_DEVICE"))
    return np.asarray(array)
