"""Cost formulas of solver cards, computed without running code from them."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import InputError

_OPERATORS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "log2": math.log2,
    "ceil": math.ceil,
    "floor": math.floor,
    "min": min,
    "max": max,
}


def evaluate(formula: str, **names: float) -> float:
    """Return the value of a cost formula.

    Parameters
    ----------
    formula : str
        Arithmetic with + - * / // **, log2, ceil, floor, min, max.
    **names : float
        Values of dk, dv, t and hyperparameters.

    Raises
    ------
    InputError
        If the formula holds anything else, or a name that is not given.

    Examples
    --------
    >>> evaluate("2*dk*dv + dk", dk=8, dv=4)
    72
    """
    try:
        return _value(ast.parse(formula, mode="eval").body, names)
    except SyntaxError as error:
        raise InputError(f"cost formula {formula!r}: {error.msg}") from error


def _value(node: ast.AST, names: Mapping[str, Any]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name) if name in names:
            return float(names[name]) if isinstance(names[name], float) else names[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, names))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(arg, names) for arg in args))
    what = ast.unparse(node)
    raise InputError(f"cost formula: {what!r} is not known; it may use {', '.join(names)}")
