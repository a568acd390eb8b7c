"""Tables that a constructor computes from sizes, such as rotary angles, as the same expression in JAX."""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from converters.graph.expression import as_code, call
from converters.graph.writing.holes import fill
from converters.graph.writing.original import constructors, names

_ELEMENTWISE = ("cos", "sin", "exp", "log", "sqrt", "tan")
# How many times float32's own rounding of an expression its table may be from it.
_ROUNDINGS = 4
_BUILTINS = {"int": int, "float": float}
# A call that stands for a local variable until its class is written: its name and its value.
_NAMED = "_named"
# How many local variables an expression may lead through.
_DEPTH = 8


def table(
    tensor: torch.Tensor, cls: Any, name: str, number: Callable[[ast.expr], Any]
) -> ast.expr | None:
    """The expression that a constructor assigns to a buffer, in JAX.

    None where a part of it has no counterpart here, or where it gives other values.

    Args:
        tensor: the buffer.
        cls: the class of the module that has it.
        name: what it is called there.
        number: an expression of the constructor → its number, as a setting where settings give it; or None.
    """
    if tensor.dtype != torch.float32:
        return None
    local: dict[str, set[ast.expr]] = {}
    for tree in constructors.constructors(cls):
        for variable, values in names.assigned(tree).items():
            local.setdefault(variable, set()).update(values)
    single = {key: min(of, key=id) for key, of in local.items() if len(of) == 1}
    for tree in constructors.constructors(cls):
        single |= _updated(tree)
    written = _TableWriter(number, single)
    for expression in constructors.assigned(cls, name):
        # With a variable come the values that it was given.
        for way in expression.elts if isinstance(expression, ast.Tuple) else [expression]:
            try:
                pair = written.array(way)
            except _UnknownError:
                continue
            if pair is not None and _agrees(pair, tensor):
                return pair.visible
    return None


def _updated(tree: ast.AST) -> dict[str, ast.expr]:
    """Local variables of a constructor that get several values, or parts of them: the last value.

    `pe = zeros(n, d)`, `pe[:, 0::2] = sin(x)` and `pe = pe[None]` are
    `zeros(n, d).at[:, 0::2].set(sin(x))[None]`. Only what always runs counts.
    """
    function = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)
    last: dict[str, ast.expr] = {}
    count: dict[str, int] = {}
    for statement in function.body if function is not None else ():
        for each in statement.body if isinstance(statement, ast.With) else [statement]:
            match each:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    last[name] = _WithValue(name, last.get(name)).visit(copy.deepcopy(value))
                    count[name] = count.get(name, 0) + 1
                case ast.Assign(
                    targets=[ast.Subscript(value=ast.Name(id=name), slice=index)], value=value
                ) if name in last:
                    part = ast.Subscript(
                        ast.Attribute(last[name], "at", ast.Load()), index, ast.Load()
                    )
                    put = ast.Attribute(part, "set", ast.Load())
                    last[name] = ast.Call(put, [value], [])
                    count[name] = 2
                case _:
                    for node in ast.walk(each):
                        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                            last.pop(node.id, None)
                        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                            last.pop(ast.unparse(node.value), None)
    return {name: value for name, value in last.items() if count[name] > 1}


class _WithValue(ast.NodeTransformer):
    """A variable's value before, in the expression of its next one."""

    def __init__(self, name: str, value: ast.expr | None) -> None:
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.value if node.id == self.name and self.value is not None else node


def with_variables(setup: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements of a `setup`, with the local variables that the original's constructor has."""
    variables = _Variables()
    for statement in setup:
        # The class may be written again.
        written = variables.visit(fill(statement, lambda hole: hole))
        variables.statements.append(written)
    return variables.statements


class _Variables(ast.NodeTransformer):
    def __init__(self) -> None:
        self.statements: list[ast.stmt] = []
        self.known: dict[str, str] = {}

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if not _is_named(node):
            return node
        variable, value = node.args
        assert isinstance(variable, ast.Constant)
        name, text = str(variable.value), ast.dump(value)
        if name not in self.known:
            self.known[name] = text
            self.statements.append(ast.Assign([ast.Name(name, ast.Store())], value))
        return ast.Name(name, ast.Load()) if self.known[name] == text else value


def without_variables(statement: ast.stmt) -> ast.stmt:
    """A statement with what local variables of the original's constructor stand for."""
    inlined: ast.stmt = _Inlined().visit(fill(statement, lambda hole: hole))
    return inlined


class _Inlined(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        return node.args[1] if _is_named(node) else node


def _is_named(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == _NAMED


class _UnknownError(Exception):
    """A part of an expression has no counterpart."""


class _Pair:
    """An expression in the port, and the same with numbers for settings.

    Attributes:
        visible: in the port.
        plain: with numbers.
        is_array: whether it is an array.
    """

    def __init__(self, visible: ast.expr, plain: ast.expr, is_array: bool) -> None:
        self.visible, self.plain, self.is_array = visible, plain, is_array


class _TableWriter:
    """Writes an expression of a constructor in JAX."""

    def __init__(
        self, number: Callable[[ast.expr], Any], local: Mapping[str, ast.expr], depth: int = 0
    ) -> None:
        self.number, self.local, self.depth = number, local, depth

    def array(self, node: ast.expr) -> _Pair | None:
        pair = self._any(node)
        return pair if pair.is_array else None

    def _any(self, node: ast.expr) -> _Pair:
        number = self.number(node)
        text: str = getattr(number, "text", "")
        if number is not None and (text or not _calls(node)):
            return _Pair(as_code(number), ast.Constant(number + 0), False)
        match node:
            case ast.Name(id=name) if name in self.local and self.depth < _DEPTH:
                deeper = _TableWriter(self.number, self.local, self.depth + 1)
                pair = deeper._any(self.local[name])
                named = call(_NAMED, names.clean(name), pair.visible)
                return _Pair(named, pair.plain, True) if pair.is_array else pair
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return _Pair(node, node, False)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return self._joined(lambda x: ast.UnaryOp(ast.USub(), x), self._any(inner))
            case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.MatMult):
                return self._joined(
                    lambda a, b: ast.BinOp(a, op, b), self._any(left), self._any(right)
                )
            case ast.Subscript(value=value, slice=index) if _is_new_axes(index):
                return self._joined(lambda x: ast.Subscript(x, index, ast.Load()), self._any(value))
            case ast.Subscript(value=value, slice=index):
                return self._joined(_subscripted, self._any(value), *self._bounds(index))
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Subscript(value=ast.Attribute(value=value, attr="at"), slice=index),
                    attr="set",
                ),
                args=[part],
            ):
                return self._joined(_put, self._any(value), self._any(part), *self._bounds(index))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name)):
                return self._function(name, node.args, node.keywords)
            case ast.Call(func=ast.Name(id="float" | "int") as rounded, args=[inner]):
                return self._joined(lambda x: ast.Call(rounded, [x], []), self._any(inner))
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="math"), attr="log" | "sqrt") as function,
                args=[inner],
            ):
                return self._joined(lambda x: ast.Call(function, [x], []), self._any(inner))
            case ast.Call(func=ast.Attribute(value=value, attr="float"), args=[]):
                return self._as_float(value)
            case ast.Call(
                func=ast.Attribute(value=value, attr="to" | "type"), args=[kind], keywords=[]
            ) if ast.unparse(kind) in ("torch.float", "torch.float32"):
                return self._as_float(value)
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                return self._function(name, [value, *node.args], node.keywords)
        raise _UnknownError

    def _bounds(self, index: ast.expr) -> list[_Pair]:
        """The slices of an index, as pairs of expressions."""
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        pairs = []
        for part in parts:
            if not isinstance(part, ast.Slice):
                raise _UnknownError
            sides = [
                None if side is None else self._any(side)
                for side in (part.lower, part.upper, part.step)
            ]
            if any(side is not None and side.is_array for side in sides):
                raise _UnknownError
            visible = ast.Slice(*(side.visible if side else None for side in sides))
            plain = ast.Slice(*(side.plain if side else None for side in sides))
            pairs.append(_Pair(visible, plain, False))
        return pairs

    def _as_float(self, value: ast.expr) -> _Pair:
        inner = self._any(value)
        kind = _jnp("float32")

        def cast(x: ast.expr) -> ast.expr:
            if isinstance(x, ast.Call) and ast.unparse(x.func) == "jnp.arange" and not x.keywords:
                return ast.Call(x.func, x.args, [ast.keyword("dtype", kind)])
            return ast.Call(ast.Attribute(x, "astype", ast.Load()), [kind], [])

        return self._joined(cast, inner)

    def _function(self, name: str, arguments: list[ast.expr], keywords: list[ast.keyword]) -> _Pair:
        named = {keyword.arg: keyword.value for keyword in keywords if keyword.arg != "device"}
        if name == "arange" and named.keys() <= {"dtype"}:
            sides = [self._any(argument) for argument in arguments]
            kind = ast.unparse(named["dtype"]) if named else ""
            if kind not in ("", "torch.float32", "torch.float") or any(x.is_array for x in sides):
                raise _UnknownError
            dtype = [ast.keyword("dtype", _jnp("float32"))] if kind else []
            return self._joined(
                lambda *x: ast.Call(_jnp("arange"), list(x), dtype), *sides, array=True
            )
        if name in ("cat", "concat") and len(arguments) <= 2 and named.keys() <= {"dim"}:
            axis = ast.literal_eval(named.get("dim", (*arguments, ast.Constant(0))[1]))
            if not isinstance(arguments[0], ast.Tuple | ast.List):
                raise _UnknownError
            parts = [self._any(part) for part in arguments[0].elts]
            axes = [ast.keyword("axis", as_code(axis))]
            return self._joined(
                lambda *x: ast.Call(_jnp("concatenate"), [ast.List(list(x), ast.Load())], axes),
                *parts,
            )
        if named:
            raise _UnknownError
        if name in ("zeros", "empty") and arguments:
            listed = arguments[0] if len(arguments) == 1 else None
            shape = listed.elts if isinstance(listed, ast.Tuple | ast.List) else arguments
            sides = [self._any(side) for side in shape]
            if any(side.is_array for side in sides):
                raise _UnknownError
            return self._joined(
                lambda *x: ast.Call(_jnp("zeros"), [ast.Tuple(list(x), ast.Load())], []),
                *sides,
                array=True,
            )
        if name == "unsqueeze" and len(arguments) == 2:
            index = _NEW_AXES.get(names.integer(arguments[1]))
            if index is None:
                raise _UnknownError
            new = ast.parse(f"x[{index}]", mode="eval").body.slice  # type: ignore[attr-defined]
            inner = self._any(arguments[0])
            return self._joined(lambda x: ast.Subscript(x, new, ast.Load()), inner)
        if name == "transpose" and len(arguments) == 3:
            swapped = [names.integer(axis) for axis in arguments[1:]]
            if None in swapped:
                raise _UnknownError
            return self._joined(
                lambda x: ast.Call(
                    ast.Attribute(x, "swapaxes", ast.Load()),
                    [as_code(axis) for axis in swapped],
                    [],
                ),
                self._any(arguments[0]),
            )
        if name == "einsum" and _is_outer(arguments[0]):
            name, arguments = "outer", arguments[1:]
        if name == "pow" and len(arguments) == 2:
            base, exponent = map(self._any, arguments)
            return self._joined(lambda a, b: ast.BinOp(a, ast.Pow(), b), base, exponent)
        if (name == "outer" and len(arguments) == 2) or (
            name in _ELEMENTWISE and len(arguments) == 1
        ):
            parts = [self._any(argument) for argument in arguments]
            if all(part.is_array for part in parts):
                return self._joined(lambda *x: ast.Call(_jnp(name), list(x), []), *parts)
        raise _UnknownError

    def _joined(self, write: Callable[..., ast.expr], *parts: _Pair, array: bool = False) -> _Pair:
        return _Pair(
            write(*(part.visible for part in parts)),
            write(*(part.plain for part in parts)),
            array or any(part.is_array for part in parts),
        )


def _calls(node: ast.expr) -> bool:
    """Whether an expression calls a function: a number is then written as the original does."""
    return any(isinstance(each, ast.Call) for each in ast.walk(node))


# Axis that `unsqueeze` adds → the index that does.
_NEW_AXES: Mapping[int | None, str] = {0: "None", 1: ":, None", -1: "..., None"}


def _subscripted(array: ast.expr, *slices: ast.expr) -> ast.expr:
    index = slices[0] if len(slices) == 1 else ast.Tuple(list(slices), ast.Load())
    return ast.Subscript(array, index, ast.Load())


def _put(array: ast.expr, part: ast.expr, *slices: ast.expr) -> ast.expr:
    """`array.at[slices].set(part)`."""
    place = _subscripted(ast.Attribute(array, "at", ast.Load()), *slices)
    return ast.Call(ast.Attribute(place, "set", ast.Load()), [part], [])


class _Settable(np.ndarray[Any, Any]):
    """An array of numpy with JAX's `x.at[index].set(part)`."""

    @property
    def at(self) -> Any:
        array = self

        class At:
            def __getitem__(self, index: Any) -> Any:
                def put(part: Any) -> _Settable:
                    changed = array.copy()
                    changed[index] = part
                    return changed

                return SimpleNamespace(set=put)

        return At()


def _jnp(name: str) -> ast.expr:
    return ast.Attribute(ast.Name("jnp", ast.Load()), name, ast.Load())


def _is_outer(node: ast.expr) -> bool:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    inputs, _, output = node.value.replace(" ", "").partition("->")
    first, _, second = inputs.partition(",")
    return len(first) == len(second) == 1 and first != second and output == first + second


def _is_new_axes(index: ast.expr) -> bool:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(
        (isinstance(part, ast.Constant) and part.value is None)
        or (isinstance(part, ast.Slice) and part.lower is part.upper is part.step is None)
        for part in parts
    )


def _agrees(pair: _Pair, tensor: torch.Tensor) -> bool:
    """Whether an expression has a table's values, but for what float32 rounds in it."""
    source = compile(ast.fix_missing_locations(ast.Expression(pair.plain)), "a table", "eval")
    runs = []
    for kind in (np.float64, np.float32):
        functions = {name: getattr(np, name) for name in (*_ELEMENTWISE, "outer", "concatenate")}

        def arange(*sides: Any, dtype: Any = None, kind: Any = kind) -> Any:
            return np.arange(*sides).astype(dtype or kind)

        def zeros(shape: tuple[int, ...], kind: Any = kind) -> Any:
            return np.zeros(shape, kind).view(_Settable)

        space = SimpleNamespace(**functions, arange=arange, zeros=zeros, float32=kind)
        try:
            runs.append(
                np.asarray(
                    eval(
                        source,
                        {"jnp": space, "math": math, "__builtins__": _BUILTINS},
                    )
                )
            )
        except (ArithmeticError, ValueError, TypeError, NameError, AttributeError):
            return False
    wide, narrow = (run.astype(np.float64) for run in runs)
    own = tensor.detach().cpu().double().numpy()
    if wide.shape != own.shape or not np.isfinite(wide).all():
        return False
    rounding = np.abs(wide - narrow).max() + 2.0**-23 * np.abs(wide).max()
    return bool(np.abs(wide - own).max() <= _ROUNDINGS * rounding)
