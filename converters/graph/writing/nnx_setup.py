"""Constructors of nnx modules, made of the `setup` of linen ones."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from converters.graph.expression import call, code
from converters.graph.writing.precision.numerics import PARAM

_PLAIN = {
    "nn.initializers.zeros": "jnp.zeros",
    "nn.initializers.ones": "jnp.ones",
}
_COLLECTIONS = {"buffers": "Buffer", "batch_stats": "nnx.BatchStat"}


@dataclass(frozen=True)
class HeldVariable:
    """A variable that a module holds itself.

    Attributes:
        cast: whether it is read in the dtype of the computation.
    """

    cast: bool


@dataclass
class ModuleInit:
    """The constructor of a class.

    Attributes:
        statements: what it does beside keeping its arguments.
        held: attribute → variable of the module's own.
        children: attribute → the constructor of the module there; lists and dicts of these.
        computed: attribute → an array that follows from sizes: a property, so that no state holds it.
        draws: whether it needs `rngs`.
        stored: whether arrays come from a file, or those of a module below.
    """

    statements: list[ast.stmt] = field(default_factory=list)
    held: dict[str, HeldVariable] = field(default_factory=dict)
    children: dict[str, Any] = field(default_factory=dict)
    computed: dict[str, ast.expr] = field(default_factory=dict)
    draws: bool = False
    stored: bool = False


def constructor(setup: Sequence[ast.stmt], known: Mapping[str, ModuleInit]) -> ModuleInit:
    """The constructor of a class.

    Args:
        setup: its `setup` in linen.
        known: name → constructor of the classes before it.
    """
    init = ModuleInit()
    maker = _Maker(init, known)
    init.statements = maker.statements(setup)
    init.draws = any(
        isinstance(node, ast.Name) and node.id == "rngs"
        for statement in init.statements
        for node in ast.walk(statement)
    )
    return init


class _Maker(ast.NodeTransformer):
    def __init__(self, init: ModuleInit, known: Mapping[str, ModuleInit]) -> None:
        self.init, self.known = init, known
        # Attribute → on what its first value depends.
        self._tests: dict[str, ast.expr] = {}

    def statements(self, setup: Sequence[ast.stmt], test: ast.expr | None = None) -> list[ast.stmt]:
        """Statements of the constructor; `test` is what they depend on."""
        statements: list[ast.stmt] = []
        for statement in setup:
            match statement:
                case ast.If(test=inner, body=body, orelse=orelse):
                    parts = (self.statements(body, inner), self.statements(orelse))
                    if parts[0]:
                        statements.append(ast.If(self.visit(inner), *parts))
                    elif parts[1]:
                        negated = ast.UnaryOp(ast.Not(), self.visit(inner))
                        statements.append(ast.If(negated, parts[1], []))
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
                    if _is_array(statement.value):
                        self._computed(name, statement.value, test)
                    else:
                        value = self._value(name, statement.value)
                        statements.append(ast.Assign(statement.targets, value))
                case ast.Expr(
                    value=ast.Call(
                        func=ast.Name(id="setattr"), args=[me, ast.Constant(value=name), value]
                    )
                ):
                    new = self._value(str(name), value)
                    statements.append(ast.Expr(call("setattr", me, name, new)))
                case _:
                    statements.append(self.visit(statement))
        return statements

    def _computed(self, name: str, value: ast.expr, test: ast.expr | None) -> None:
        other = self.init.computed.get(name)
        if other is not None:
            first, last = (other, value) if test is None else (value, other)
            value = ast.IfExp(test or self._tests[name], first, last)
        elif test is not None:
            self._tests[name] = test
        self.init.computed[name] = value

    def _value(self, name: str, value: ast.expr) -> ast.expr:
        """The value of an attribute; what it is is noted."""
        variable, cast = _uncast(value)
        created = self._variable(variable)
        if created is not None:
            new, is_cast = created
            self.init.held[name] = HeldVariable(cast or is_cast)
            return new
        kind = self._kind(value)
        if kind is not None:
            self.init.children[name] = kind
        return self._modules(value)

    def _variable(self, value: ast.expr) -> tuple[ast.expr, bool] | None:
        """A weight or buffer, and whether it is read in the dtype of the computation; None: neither."""
        match value:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Name(id="self"), attr="param" | "cast_param" as method
                ),
                args=[_, init, shape, *kind],
            ):
                cast = method == PARAM
                dtype = (
                    code("self.param_dtype") if cast else (kind[0] if kind else code("jnp.float32"))
                )
                return call("nnx.Param", self._started(init, shape, dtype)), cast
            case ast.Attribute(
                value=ast.Call(
                    func=ast.Attribute(attr="variable"),
                    args=[ast.Constant(value=collection), _, how, *rest],
                ),
                attr="value",
            ):
                reads = next(filter(_stores, ast.walk(how)), None)
                if isinstance(how, ast.Lambda) and isinstance(reads, ast.Call):
                    self.init.stored = True
                    array = call("jnp.zeros", reads.args[-1], code("self.param_dtype"))
                elif isinstance(how, ast.Lambda):
                    array = self.visit(how.body)
                elif isinstance(how, ast.Name) and how.id == "stored":
                    self.init.stored = True
                    array = call("jnp.zeros", rest[-1])
                else:
                    array = ast.Call(how, rest, [])
                return call(_COLLECTIONS[str(collection)], array), False
        return None

    def _started(self, init: ast.expr, shape: ast.expr, dtype: ast.expr) -> ast.expr:
        """The first value of a weight."""
        plain = _PLAIN.get(ast.unparse(ast.fix_missing_locations(init)))
        if plain is None and _is_stored(init):
            self.init.stored = True
            plain = "jnp.zeros"
        if plain is not None:
            return call(plain, shape, dtype)
        match init:
            case ast.Call(func=ast.Attribute(attr="constant"), args=[value], keywords=[]):
                return call("jnp.full", shape, value, dtype)
        return ast.Call(self.visit(init), [code("rngs.params()"), shape, dtype], [])

    def _modules(self, value: ast.expr) -> ast.expr:
        """A module or variable, or some of these in lists and dicts."""
        variable = self._variable(_uncast(value)[0])
        if variable is not None:
            return variable[0]
        match value:
            case ast.List(elts=parts):
                return call(
                    "nnx.List", ast.List([self._modules(part) for part in parts], ast.Load())
                )
            case ast.ListComp(elt=element, generators=generators):
                return call("nnx.List", ast.ListComp(self._modules(element), generators))
            case ast.Dict(keys=keys, values=values):
                return call("nnx.Dict", ast.Dict(keys, [self._modules(each) for each in values]))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return ast.IfExp(self.visit(test), self._modules(body), self._modules(orelse))
        changed: ast.expr = self.visit(value)
        return changed

    def visit_Call(self, node: ast.Call) -> ast.expr:
        function = ast.unparse(node.func)
        if function in ("nn.Sequential", "Sequential") and len(node.args) == 1:
            layers = node.args[0]
            if isinstance(layers, ast.List):
                return call("nnx.Sequential", *(self._modules(each) for each in layers.elts))
            return code("nnx.Sequential(*{layers})", layers=self.visit(layers))
        if function == "self.make_rng":
            stream = node.args[0]
            assert isinstance(stream, ast.Constant)
            return code(f"rngs.{stream.value!s}()")
        self.generic_visit(node)
        if _stores(node):
            self.init.stored = True
        if function == "nn.Dropout":
            named = [each for each in node.keywords if each.arg != "deterministic"]
            node = ast.Call(code("nnx.Dropout"), node.args, [*named, _RNGS])
        elif function in self.known and self.known[function].draws:
            node = ast.Call(node.func, node.args, [*node.keywords, _RNGS])
        node.keywords.sort(key=lambda each: (each.arg is None) * 2 + (each.arg == "rngs"))
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        if _is_stored(node):
            self.init.stored = True
            return code("nn.initializers.zeros")
        self.generic_visit(node)
        return node

    def _kind(self, value: ast.expr) -> Any:
        """The constructor of a module; a list or dict of these; None: no module of the port."""
        variable, cast = _uncast(value)
        created = self._variable(variable)
        if created is not None:
            return HeldVariable(cast or created[1])
        match value:
            case ast.Call(func=ast.Name(id=name)) if name in self.known:
                return self.known[name]
            case ast.Call(func=function, args=[ast.List() | ast.ListComp() as layers]) if (
                ast.unparse(function)
                in (
                    "nn.Sequential",
                    "Sequential",
                )
            ):
                return {"layers": self._kind(layers)}
            case ast.List(elts=parts):
                return [self._kind(part) for part in parts]
            case ast.ListComp(elt=element):
                return [self._kind(element)]
            case ast.Dict(keys=keys, values=values):
                names = [key.value if isinstance(key, ast.Constant) else None for key in keys]
                return dict(zip(names, map(self._kind, values), strict=True))
            case ast.IfExp(body=body, orelse=orelse):
                return self._kind(body) or self._kind(orelse)
        return None


_RNGS = ast.keyword("rngs", ast.Name("rngs", ast.Load()))


def _uncast(value: ast.expr) -> tuple[ast.expr, bool]:
    """A value, and whether it stands in `jnp.asarray(…, self.dtype)`."""
    match value:
        case ast.Call(func=ast.Attribute(attr="asarray"), args=[inner, dtype]):
            if ast.unparse(dtype) == "self.dtype":
                return inner, True
    return value, False


def _is_stored(init: ast.expr) -> bool:
    """Whether an initializer reads a file."""
    return isinstance(init, ast.Lambda) and any(map(_stores, ast.walk(init)))


def _stores(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "stored"
    )


def _is_array(value: ast.expr) -> bool:
    """Whether a value is computed of sizes by jax.numpy or numpy."""
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    modules = {"nn", "nnx", "rngs", "_list"} & names or any(name[:1].isupper() for name in names)
    variables = any(
        isinstance(node, ast.Attribute) and node.attr in ("param", "variable", PARAM)
        for node in ast.walk(value)
    )
    return bool({"jnp", "np", "jax"} & names) and not modules and not variables
