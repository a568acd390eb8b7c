"""The number of elements over which a ported loss is a mean, as methods beside the ones that compute it.

The mean over all micro-batches of an update is that of their losses, weighted by these numbers.
Of a loss that is a sum, the number is that of the elements that it adds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from migrate.train.write.split import STEP

COUNT = "counted"
# Losses of classes in a port, with their parameters: a mean over the targets that are not `ignore`.
_OF_CLASSES = ("cross_entropy", "right_class_loss")
_PARAMETERS = ("logits", "target", "reduction", "ignore", "smoothing")
_OF_SHAPE = ("size", "shape", "ndim", "dtype")
# A denominator is kept from zero by at most this much, or this much is added to it.
_LEAST, _ADDED = 1.0, 1e-5


class NoCount(Exception):  # noqa: N818 (a decision, reported by the pipeline)
    """The loss is not a mean, or a sum, whose number of elements is visible; the text says why."""


@dataclass(frozen=True)
class CountedSource:
    """A port with its counts.

    Attributes:
        source: the port's source; each callable on the way to the mean has one more beside it.
        inputs: inputs of the step that the count reads.
        takes_mode: whether the count has the argument `deterministic`.
        form: what the loss is over these elements: a mean or a sum.
    """

    source: str
    inputs: tuple[str, ...]
    takes_mode: bool
    form: str = "mean"


def counted_source(modeling: str, *, sums: bool = False) -> CountedSource:
    """Add the method `counted` to the step of a port.

    Args:
        modeling: source of the port.
        sums: whether the loss is a sum, not a mean.

    Raises:
        NoCount: the loss is not one mean (one sum), or its number of elements is not visible.
    """
    reader = _Reader(ast.parse(modeling), sums)
    step = reader.classes[STEP]
    used = reader.read(_method(step, "__call__"), step)
    lines = modeling.splitlines()
    for last, text in sorted(reader.added.values(), reverse=True):
        lines[last:last] = text.splitlines()
    inputs = tuple(name for name in used if name != "deterministic")
    source = "\n".join(lines) + "\n"
    return CountedSource(source, inputs, "deterministic" in used, reader.form)


@dataclass(frozen=True)
class _Denominator:
    """An expression at a statement, with the names that it reads there."""

    value: ast.expr
    position: int


class _Reader:
    """Denominators of the callables of one port; of a loss that is a sum, the numbers of its elements."""

    def __init__(self, tree: ast.Module, sums: bool) -> None:
        self.sums = sums
        self.classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
        self.functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        # Name of the new callable → line after which it stands, and its text.
        self.added: dict[str, tuple[int, str]] = {}
        self._parameters: dict[str, tuple[str, ...]] = {}

    @property
    def form(self) -> str:
        """Form of the loss: a sum, or a mean."""
        return "sum" if self.sums else "mean"

    def read(self, function: ast.FunctionDef, owner: ast.ClassDef | None) -> tuple[str, ...]:
        """Write the count of a callable; return the parameters that it has."""
        key = f"{owner.name}.{COUNT}" if owner else f"{COUNT}_{function.name}"
        if key not in self._parameters:
            body = _CountBody(function, owner, self)
            used, lines = body.count()
            self._parameters[key] = used
            names = [*(["self"] if owner else []), *used]
            notes = {a.arg: a.annotation for a in _arguments(function)}
            head = ", ".join(_parameter(name, notes.get(name)) for name in names)
            depth = " " * function.col_offset
            text = [
                "",
                *([] if owner else [""]),
                f"def {key.rpartition('.')[2]}({head}) -> Array:",
                f'    """Number of elements over which the loss is a {self.form}."""',
                *(f"    {line}" for line in lines),
            ]
            assert function.end_lineno is not None
            indented = "\n".join(f"{depth}{line}" if line else "" for line in text)
            self.added[key] = (function.end_lineno, indented)
        return self._parameters[key]

    def child(self, owner: ast.ClassDef, name: str) -> ast.ClassDef | None:
        """Class of a child module, as `setup` makes it."""
        for node in ast.walk(_method(owner, "setup")):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"self.{name}":
                call = node.value
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                    return self.classes.get(call.func.id)
        return None


class _CountBody:
    """Statements of one callable.

    Args:
        function: the callable.
        owner: its class; None for a function.
        reader: reads the callables that it calls.
    """

    def __init__(
        self, function: ast.FunctionDef, owner: ast.ClassDef | None, reader: _Reader
    ) -> None:
        self._function, self._owner, self._reader = function, owner, reader
        self._statements = function.body
        self._names = [argument.arg for argument in _arguments(function)]

    def count(self) -> tuple[tuple[str, ...], list[str]]:
        """Parameters of the count, and its statements."""
        end = self._statements[-1]
        if not isinstance(end, ast.Return) or end.value is None:
            raise NoCount(f"{self._function.name} does not end with its loss")
        every = [*self._denominators(end.value, len(self._statements) - 1)]
        if not every:
            raise NoCount(f"the loss has no {self._reader.form}")
        first = min(every, key=lambda denominator: denominator.position)
        for other in every:
            if ast.unparse(other.value) != ast.unparse(first.value):
                raise NoCount(
                    f"its terms are {self._reader.form}s over other numbers of elements, "
                    f"{ast.unparse(first.value)} and {ast.unparse(other.value)}"
                )
            again = {
                name
                for statement in self._statements[first.position : other.position]
                for name in _stored(statement)
            }
            if changed := again & _loaded(first.value):
                raise NoCount(
                    f"{min(changed)} changes between two {self._reader.form}s of the loss"
                )
        needed, taken = _loaded(first.value), []
        for statement in reversed(self._statements[: first.position]):
            if _stored(statement) & needed:
                if isinstance(statement, ast.AugAssign):
                    raise NoCount(f"{ast.unparse(statement.target)} changes in place")
                taken.append(statement)
                needed = needed | _loaded(statement)
        used = tuple(name for name in self._names if name in needed and name != "self")
        return used, [
            *(line for s in reversed(taken) for line in ast.unparse(s).splitlines()),
            f"return {ast.unparse(first.value)}",
        ]

    def _denominators(self, value: ast.expr, position: int) -> Iterator[_Denominator]:
        """Yield the denominator of each mean that a value is the sum of."""
        match value:
            case ast.Name():
                yield from self._denominators(*self._assigned(value, position))
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                yield from self._denominators(value.operand, position)
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                for side in (value.left, value.right):
                    if not self._is_number(side, position):
                        yield from self._denominators(side, position)
            case ast.BinOp(op=ast.Mult()) if self._is_number(value.left, position):
                yield from self._denominators(value.right, position)
            case ast.BinOp(op=ast.Mult() | ast.Div()) if self._is_number(value.right, position):
                yield from self._denominators(value.left, position)
            case ast.Call() if self._reader.sums and self._is_sum(value, position):
                yield self._elements(value, position)
            case ast.BinOp(op=ast.Div()) if not self._reader.sums and self._is_sum(
                value.left, position
            ):
                denominator = self._above_zero(value.right, position)
                self._require_data(denominator.value, denominator.position)
                yield denominator
            case ast.Call():
                yield from self._of_call(value, position)
            case _:
                raise self._no_count(value)

    def _no_count(self, value: ast.expr) -> NoCount:
        visible = "number of elements" if self._reader.sums else "denominator"
        return NoCount(f"{ast.unparse(value)} is no {self._reader.form} with a visible {visible}")

    def _elements(self, call: ast.Call, position: int) -> _Denominator:
        """The number of elements that a sum adds: those of its mask, if it has one."""
        if _is_of_classes(call):
            return self._of_targets(_bound(call, _PARAMETERS), position)
        array = _reduced(call, "sum")
        assert array is not None
        while isinstance(array, ast.UnaryOp):
            array = array.operand
        if isinstance(array, ast.BinOp) and isinstance(array.op, ast.Mult):
            for side in (array.right, array.left):
                try:
                    self._require_data(side, position)
                except NoCount:
                    continue
                text = f"({ast.unparse(side)}).sum()"
                return _Denominator(ast.parse(text, mode="eval").body, position)
        return _Denominator(ast.Attribute(array, "size", ast.Load()), position)

    def _of_targets(self, named: Mapping[str, ast.expr], position: int) -> _Denominator:
        """The number of targets that a loss of classes does not ignore."""
        ignored = ast.unparse(named.get("ignore", ast.Constant(-100)))
        target = named["target"]
        self._require_data(target, position)
        text = f"({ast.unparse(target)} != {ignored}).sum()"
        return _Denominator(ast.parse(text, mode="eval").body, position)

    def _of_call(self, call: ast.Call, position: int) -> Iterator[_Denominator]:
        func = call.func
        array = None if self._reader.sums else _reduced(call, "mean")
        if array is not None:
            yield _Denominator(ast.Attribute(array, "size", ast.Load()), position)
        elif isinstance(func, ast.Name) and func.id in _OF_CLASSES:
            named = _bound(call, _PARAMETERS)
            reduction = named.get("reduction", ast.Constant("mean"))
            if not isinstance(reduction, ast.Constant) or reduction.value != self._reader.form:
                raise NoCount(f"{ast.unparse(call)} is no {self._reader.form}")
            yield self._of_targets(named, position)
        elif isinstance(func, ast.Attribute) and func.attr == "astype":
            yield from self._denominators(func.value, position)
        else:
            yield _Denominator(self._of_callee(call), position)

    def _of_callee(self, call: ast.Call) -> ast.expr:
        """The count of a called child module, or of a function of the port."""
        func = call.func
        child = None
        if self._owner is not None and isinstance(func, ast.Attribute):
            of_self = isinstance(func.value, ast.Name) and func.value.id == "self"
            child = self._reader.child(self._owner, func.attr) if of_self else None
        if child is not None:
            inner, owner = _method(child, "__call__"), child
            counted = f"{ast.unparse(func)}.{COUNT}"
        elif isinstance(func, ast.Name) and func.id in self._reader.functions:
            inner, owner = self._reader.functions[func.id], None
            counted = f"{COUNT}_{func.id}"
        else:
            raise self._no_count(call)
        used = self._reader.read(inner, owner)
        names = [argument.arg for argument in _arguments(inner) if argument.arg != "self"]
        named = _bound(call, names)
        arguments = ", ".join(f"{n}={ast.unparse(named[n])}" for n in used if n in named)
        return ast.parse(f"{counted}({arguments})", mode="eval").body

    def _assigned(self, name: ast.Name, position: int) -> tuple[ast.expr, int]:
        """The value of a name before a statement, and the statement that gives it."""
        for index in range(position - 1, -1, -1):
            statement = self._statements[index]
            if name.id not in _stored(statement):
                continue
            match statement:
                case ast.Assign(targets=[ast.Name()]):
                    return statement.value, index
            break
        raise self._no_count(name)

    def _is_number(self, value: ast.expr, position: int) -> bool:
        """Whether a value is a number of the program: it is the same in each micro-batch."""
        match value:
            case ast.Constant():
                return isinstance(value.value, int | float)
            case ast.UnaryOp():
                return self._is_number(value.operand, position)
            case ast.BinOp():
                return all(self._is_number(side, position) for side in (value.left, value.right))
            case ast.Attribute():
                return ast.unparse(value).startswith("self.config.")
            case ast.Name():
                try:
                    return self._is_number(*self._assigned(value, position))
                except NoCount:
                    return False
        return False

    def _is_sum(self, value: ast.expr, position: int) -> bool:
        match value:
            case ast.Name():
                try:
                    return self._is_sum(*self._assigned(value, position))
                except NoCount:
                    return False
            case ast.UnaryOp():
                return self._is_sum(value.operand, position)
            case ast.Call():
                named = _bound(value, _PARAMETERS) if _is_of_classes(value) else {}
                reduction = named.get("reduction")
                sums = isinstance(reduction, ast.Constant) and reduction.value == "sum"
                return sums or _reduced(value, "sum") is not None
        return False

    def _above_zero(self, value: ast.expr, position: int) -> _Denominator:
        """A denominator without what keeps it from zero: `jnp.maximum(count, 1)`, `count + 1e-8`."""
        if isinstance(value, ast.Name) and value.id not in self._names:
            return self._above_zero(*self._assigned(value, position))
        match value:
            case ast.Call(args=[count, least]) if (
                ast.unparse(value.func) in ("jnp.maximum", "jnp.clip")
                and _constant(least) <= _LEAST
            ):
                return self._above_zero(count, position)
            case ast.BinOp(op=ast.Add()) if 0 <= _constant(value.right) <= _ADDED:
                return self._above_zero(value.left, position)
        if _reduced(value, "sum") is not None or _is_size(value):
            return _Denominator(value, position)
        raise NoCount(f"the denominator {ast.unparse(value)} is no number of elements")

    def _require_data(self, value: ast.expr, position: int) -> None:
        """Require that a denominator does not depend on what the model computes."""
        for node in _values(value):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("self."):
                raise NoCount(f"the denominator depends on the model: {ast.unparse(node)}")
            if isinstance(node, ast.Name) and node.id not in self._names:
                for index in range(position - 1, -1, -1):
                    statement = self._statements[index]
                    if node.id in _stored(statement):
                        for part in ast.iter_child_nodes(statement):
                            if isinstance(part, ast.expr):
                                self._require_data(part, index)


def _arguments(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _parameter(name: str, annotation: ast.expr | None) -> str:
    return f"{name}: {ast.unparse(annotation)}" if annotation is not None else name


def _method(owner: ast.ClassDef, name: str) -> ast.FunctionDef:
    for node in owner.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise NoCount(f"{owner.name} has no method {name}")


def _bound(call: ast.Call, parameters: tuple[str, ...] | list[str]) -> Mapping[str, ast.expr]:
    """Arguments of a call by the names of its parameters."""
    starred = any(isinstance(value, ast.Starred) for value in call.args)
    if starred or any(keyword.arg is None for keyword in call.keywords):
        raise NoCount(f"{ast.unparse(call)} takes unnamed arguments")
    named = dict(zip(parameters, call.args, strict=False))
    return named | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def _is_of_classes(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in _OF_CLASSES


def _reduced(value: ast.expr, reduction: str) -> ast.expr | None:
    """The array that a call reduces to one number: of `x.mean()` and `jnp.mean(x)` x."""
    if not isinstance(value, ast.Call) or value.keywords:
        return None
    if not isinstance(value.func, ast.Attribute) or value.func.attr != reduction:
        return None
    if ast.unparse(value.func.value) == "jnp":
        return value.args[0] if len(value.args) == 1 else None
    return value.func.value if not value.args else None


def _is_of_shape(value: ast.expr) -> bool:
    if isinstance(value, ast.Subscript):
        value = value.value
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) == "len"
    return isinstance(value, ast.Attribute) and value.attr in _OF_SHAPE


def _is_size(value: ast.expr) -> bool:
    """Whether an expression is a number of elements or of rows: those of joined batches add up."""
    if isinstance(value, ast.Subscript):
        return ast.unparse(value).endswith(".shape[0]")
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) == "len"
    return isinstance(value, ast.Attribute) and value.attr == "size"


def _constant(value: ast.expr) -> float:
    """The number of a constant; infinity for other expressions."""
    constant = isinstance(value, ast.Constant) and isinstance(value.value, int | float)
    return float(value.value) if constant else float("inf")  # type: ignore[attr-defined]


def _values(value: ast.AST) -> Iterator[ast.AST]:
    """Walk over an expression without the parts of which only the shape is read."""
    if isinstance(value, ast.expr) and _is_of_shape(value):
        return
    yield value
    for inner in ast.iter_child_nodes(value):
        yield from _values(inner)


def _stored(statement: ast.stmt) -> set[str]:
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _loaded(node: ast.AST) -> set[str]:
    return {
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)
    }
