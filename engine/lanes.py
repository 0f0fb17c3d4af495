"""Vectors of floats in compiled code, and how numba compiles them. The only file that names numba.

Kernels write loops over neighbouring columns as vectors because a compiler that has to find these
itself keeps sums in memory instead of in registers: five to ten times slower here. A lane is a
column, and no fastmath: a column's bits depend on nothing beside it.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import binding, ir

# OpenMP threads that wait would otherwise spin, and take the core that another process needs.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
from numba import get_num_threads, njit, prange, set_num_threads, types  # noqa: E402
from numba.core import cgutils  # noqa: E402
from numba.core.typing.templates import AbstractTemplate, infer_global, signature  # noqa: E402
from numba.extending import intrinsic, lower_builtin, models, register_model  # noqa: E402

__all__ = ["njit", "prange"]  # for those who write kernels, with what is below

VECTOR = 64 if binding.get_host_cpu_features().get("avx512f") else 32
"""Bytes of a vector."""

ALONE = 2**21
"""Multiplications that one thread does sooner than it could wake another."""


@contextmanager
def team(work: int) -> Iterator[int]:
    """Let kernels run on as many threads as so many multiplications are worth, and say how many."""
    most = get_num_threads()
    workers = min(most, 1 + work // ALONE)
    set_num_threads(workers)
    try:
        yield workers
    finally:
        set_num_threads(most)


class Lanes(types.Type):
    """A vector of floats in registers: +, -, * and / work lane by lane."""

    def __init__(self, element: Any, count: int) -> None:
        self.element, self.count = element, count
        super().__init__(name=f"Lanes({element}, {count})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        element = manager.lookup(kind.element).get_value_type()
        super().__init__(manager, kind, ir.VectorType(element, kind.count))


def _operator(operation: Any, instruction: str) -> None:
    @infer_global(operation)
    class _Template(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], Lanes) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(operation, Lanes, Lanes)
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args)


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")
_operator(operator.truediv, "fdiv")


def _spread(builder: Any, kind: Any, x: Any) -> Any:
    """Return x in every lane."""
    nothing, i32 = ir.Constant(kind, ir.Undefined), ir.IntType(32)
    one = builder.insert_element(nothing, x, i32(0))
    zeros = ir.Constant(ir.VectorType(i32, kind.count), [0] * kind.count)
    return builder.shuffle_vector(one, nothing, zeros)


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Return the address of lanes that begin at an index of a flat array."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), lanes.as_pointer())


def _mask(builder: Any, count: int, n: Any) -> Any:
    """Return which of the lanes are among the first n."""
    kind = ir.VectorType(n.type, count)
    lane = ir.Constant(kind, list(range(count)))
    return builder.icmp_signed("<", lane, _spread(builder, kind, n))


def _masked(builder: Any, name: str, kinds: Any, result: Any, lanes: Any) -> Any:
    short = f"v{lanes.count}f{32 if isinstance(lanes.element, ir.FloatType) else 64}"
    function = ir.FunctionType(result, kinds)
    return cgutils.get_or_insert_function(
        builder.module, function, f"llvm.masked.{name}.{short}.p0"
    )


@intrinsic
def spread(typing: Any, x: Any, vectors: Any) -> Any:
    """Return lanes that are all x: as many as are in a vector for each entry of a tuple."""
    kind = Lanes(x, vectors.count * VECTOR * 8 // x.bitwidth)

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _spread(builder, context.get_value_type(kind), args[0])

    return kind(x, vectors), build


@intrinsic
def fill(typing: Any, x: Any, like: Any) -> Any:
    """Return lanes that are all x, as many as `like` has."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _spread(builder, context.get_value_type(like), args[0])

    return like(like.element, like), build


@intrinsic
def repeat(typing: Any, array: Any, index: Any, like: Any) -> Any:
    """Return lanes that are all one number of a flat array."""
    if array.dtype != like.element:
        return None  # numba: no such signature

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        # Unlike array[index], without a thought for indices below 0: that took half of the time.
        place = builder.gep(context.make_array(array)(context, builder, args[0]).data, [args[1]])
        return _spread(builder, context.get_value_type(like), builder.load(place))

    return like(array, types.intp, like), build


@intrinsic
def load(typing: Any, array: Any, index: Any, like: Any) -> Any:
    """Return lanes from an index of a flat array on."""
    if array.dtype != like.element:
        return None  # numba: no such signature

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes = context.get_value_type(like)
        place = _place(context, builder, array, args[0], args[1], lanes)
        return builder.load(place, align=like.element.bitwidth // 8)

    return like(array, types.intp, like), build


@intrinsic
def load_some(typing: Any, array: Any, index: Any, n: Any, like: Any) -> Any:
    """Return lanes from an index of a flat array on, 0 in all but the first n."""
    if array.dtype != like.element:
        return None  # numba: no such signature

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes = context.get_value_type(like)
        place = _place(context, builder, array, args[0], args[1], lanes)
        mask, i32 = _mask(builder, like.count, args[2]), ir.IntType(32)
        call = [place, i32(like.element.bitwidth // 8), mask, ir.Constant(lanes, None)]
        function = _masked(builder, "load", [x.type for x in call], lanes, lanes)
        return builder.call(function, call)

    return like(array, types.intp, types.intp, like), build


@intrinsic(prefer_literal=True)
def fetch(typing: Any, array: Any, index: Any, write: Any) -> Any:
    """Ask for a number's cache line ahead of time, to be read (0) or written (1)."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        place = builder.gep(context.make_array(array)(context, builder, args[0]).data, [args[1]])
        place = builder.bitcast(place, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [place.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [place, i32(write.literal_value), i32(2), i32(1)])
        return context.get_dummy_value()

    return types.none(array, types.intp, write), build


@intrinsic
def store(typing: Any, array: Any, index: Any, x: Any) -> Any:
    """Write lanes from an index of a flat array on."""
    if array.dtype != x.element:
        return None  # numba: no such signature

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = _place(context, builder, array, args[0], args[1], args[2].type)
        builder.store(args[2], place, align=x.element.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(array, types.intp, x), build


@intrinsic
def store_some(typing: Any, array: Any, index: Any, n: Any, x: Any) -> Any:
    """Write the first n of these lanes from an index of a flat array on."""
    if array.dtype != x.element:
        return None  # numba: no such signature

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = _place(context, builder, array, args[0], args[1], args[3].type)
        mask, i32 = _mask(builder, x.count, args[2]), ir.IntType(32)
        call = [args[3], place, i32(x.element.bitwidth // 8), mask]
        kinds = [value.type for value in call]
        builder.call(_masked(builder, "store", kinds, ir.VoidType(), args[3].type), call)
        return context.get_dummy_value()

    return types.none(array, types.intp, types.intp, x), build


def _folded(builder: Any, lanes: Any, fold: Any) -> Any:
    """Return what lanes come to, halves first: always in the same order."""
    i32 = ir.IntType(32)
    while lanes.type.count > 1:
        n = lanes.type.count // 2
        pick = [ir.Constant(ir.VectorType(i32, n), list(range(a, a + n))) for a in (0, n)]
        lanes = fold(*(builder.shuffle_vector(lanes, lanes, p) for p in pick))
    return builder.extract_element(lanes, i32(0))


@intrinsic
def total(typing: Any, x: Any) -> Any:
    """Return the sum over lanes."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _folded(builder, args[0], builder.fadd)

    return x.element(x), build


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", b, a), b, a)


@intrinsic
def larger(typing: Any, a: Any, b: Any) -> Any:
    """Return the larger of each pair of lanes, of `a` where one is NaN."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _larger(builder, *args)

    return a(a, b), build


@intrinsic
def largest(typing: Any, x: Any) -> Any:
    """Return the largest of the lanes."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _folded(builder, args[0], lambda a, b: _larger(builder, a, b))

    return x.element(x), build
