"""The classes of a port as the source of Flax NNX modules.

The classes are given with the constructors of linen (`setup`, `self.param`, `nn.Sequential`), in which nnx's
layers stand already; this file turns them into nnx's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any

from flax import nnx

from converters.graph.expression import code
from converters.graph.ops.functions import functions
from converters.graph.recording.trace import GraphError
from converters.graph.writing import linen
from converters.graph.writing.forms.alike import shortened
from converters.graph.writing.forms.lists import written
from converters.graph.writing.model import Class, Method, Model
from converters.graph.writing.nnx_setup import HeldVariable, ModuleInit, constructor
from converters.graph.writing.original.names import docstring
from converters.graph.writing.original.tables import without_variables
from converters.graph.writing.precision.numerics import BASE
from converters.graph.writing.training import MODE
from converters.modules.nnx.buffer import Buffer
from converters.modules.nnx.initial import set_initial
from converters.modules.nnx.rounding import ConvolutionRoundedOnce, LinearRoundedOnce

_BASE = '''
class Module(nnx.Module):
    """A module of this model.

    Args:
        dtype: dtype of the computation, or None for that of the weights and inputs.
        param_dtype: dtype of the weights of a new model.
        precision: precision of the matrix products in layers.
    """

    def __init__(
        self,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: jax.lax.PrecisionLike = None,
    ) -> None:
        self.dtype, self.param_dtype, self.precision = dtype, param_dtype, precision
'''.strip()
_DTYPES = """

    @property
    def dtypes(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}
""".rstrip()
_CAST = '''

    def cast(self, weight: nnx.Variable[Array]) -> Array:
        """A weight in the dtype of the computation."""
        return jnp.asarray(weight[...], self.dtype)
'''.rstrip()
# What a class reads of `Module`.
_IN_DTYPE = {"dtype", "param_dtype", "precision", "dtypes", "cast"}
# What only nnx's layers need.
_OWN = {
    each.__name__: each for each in (Buffer, set_initial, LinearRoundedOnce, ConvolutionRoundedOnce)
}


def modeling(
    model: Model,
    config: str,
    title: str,
    restored: Sequence[ast.FunctionDef] = (),
    layers: Sequence[type] = (),
    stubs: Mapping[str, str] | None = None,
    exact: bool = False,
) -> str:
    """The source of `modeling.py`; the arguments are those of `linen.modeling`."""
    constructors: dict[str, ModuleInit] = {}
    for cls in model.classes:
        setup = [without_variables(written(statement)) for statement in cls.setup]
        constructors[cls.name] = constructor(setup, constructors)
        _require_free(cls, constructors[cls.name])
    root = model.classes[-1].name if model.classes else ""
    if any(init.stored for init in constructors.values()):
        constructors[root].statements.append(ast.Expr(code("set_initial(self)")))
    spelling = linen.Spelling(
        partial(_class, constructors=constructors, root=root),
        _base,
        {**functions(), **_OWN},
        _spelled,
    )
    return linen.modeling(model, config, title, restored, layers, stubs, exact, spelling)


def _require_free(cls: Class, init: ModuleInit) -> None:
    """Raise GraphError where an attribute has the name of what every nnx module has."""
    own = {"__call__", "__init__"}
    attributes = [
        node.attr
        for statement in init.statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]
    for name in (*attributes, *init.computed, *cls.methods):
        if name not in own and hasattr(nnx.Module, name):
            raise GraphError(
                f"{cls.origin.__name__}.{name}: every nnx module has a {name} already",
                "port with --api linen, or give it another name in the original",
            )


def _base(text: str) -> str:
    """The class that the classes in a source are derived from, with what they use of it."""
    if "(Module)" not in text:
        return ""
    parts = [_DTYPES] if "self.dtypes" in text else []
    parts += [_CAST] if ".cast(" in text else []
    return _BASE + "".join(parts)


def _spelled(text: str) -> str:
    """Flax's initializers and functions by nnx's names."""
    return re.sub(r"(?<![\w.])nn\.(?=[a-z])", "nnx.", text)


def _class(
    cls: Class, config: str, taken: Set[str], constructors: Mapping[str, ModuleInit], root: str
) -> str:
    init = constructors[cls.name]
    reader = _MethodReader(cls.name, constructors)
    methods = {name: reader.method(method) for name, method in cls.methods.items()}
    trees = [tree for method in methods.values() for tree in (*method.body, method.result)]
    read = {
        node.attr
        for tree in (*trees, *init.computed.values())
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and _is_self(node.value)
    }
    local = _local(cls, init.statements)
    statements = [_Local(local).visit(each) for each in init.statements]
    in_dtype = any(held.cast for held in init.held.values()) or _reads(
        (*trees, *init.computed.values(), *statements), _IN_DTYPE
    )
    body: list[ast.stmt] = []
    if in_dtype:
        body += ast.parse("super().__init__(**numerics)").body
    kept = ["config"] if cls.configured and ("config" in read or cls.name == root) else []
    kept += [field for field in cls.fields if field in read or field not in local]
    body += [ast.parse(f"self.{name} = {name}").body[0] for name in kept]
    if MODE in read:
        # `model.train()` and `model.eval()` set it; a model that cannot be trained starts in evaluation.
        body += ast.parse(f"self.{MODE} = {cls.refuses}").body
    if "rngs" in read:
        body += ast.parse("self.rngs = rngs.fork()").body
    names = {*taken, *cls.fields, "config", "rngs", "numerics"}
    body += shortened(statements, names)
    needs_rngs = "rngs" in read or init.draws or cls.name == root
    # nnx has the mode as an attribute, not as an argument.
    in_nnx = replace(cls, methods=methods, takes_mode=False)
    inner = [*(_property(*each) for each in init.computed.items()), *linen.methods_of(in_nnx)]
    if body or cls.fields or cls.configured or needs_rngs:
        inner.insert(0, _init(cls, config, body, needs_rngs))
    doc = docstring(cls.origin)
    said = [ast.Expr(ast.Constant(doc))] if doc else []
    above = ast.parse(BASE if in_dtype else "nnx.Module", mode="eval").body
    return linen.unparsed(ast.ClassDef(cls.name, [above], [], [*said, *inner], []))


def _init(cls: Class, config: str, body: list[ast.stmt], needs_rngs: bool) -> ast.stmt:
    """The constructor."""
    arguments = [("config", config)] if cls.configured else []
    named = [*cls.fields.items(), *([("rngs", "nnx.Rngs")] if needs_rngs else [])]

    def parameter(name: str, kind: str) -> ast.arg:
        return ast.arg(name, ast.parse(kind, mode="eval").body)

    signature = ast.arguments(
        [],
        [ast.arg("self"), *(parameter(*each) for each in arguments)],
        None,
        [parameter(*each) for each in named],
        [None for _ in named],
        parameter("numerics", "Any") if cls.typed else None,
        [],
    )
    return ast.FunctionDef("__init__", signature, body or [ast.Pass()], [], ast.Constant(None))


def _property(name: str, value: ast.expr) -> ast.stmt:
    """A property that computes an array."""
    signature = ast.arguments([], [ast.arg("self")], None, [], [], None, [])
    returns = ast.parse("jax.Array", mode="eval").body
    body: list[ast.stmt] = [ast.Return(value)]
    return ast.FunctionDef(name, signature, body, [ast.Name("property", ast.Load())], returns)


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _local(cls: Class, statements: Sequence[ast.stmt]) -> set[str]:
    """Fields that the constructor reads as its arguments: no function in it has their names."""
    bound = {
        node.arg if isinstance(node, ast.arg) else node.id
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }
    return {"config", "numerics", *cls.fields} - bound


def _reads(trees: Sequence[ast.AST], names: Set[str]) -> bool:
    """Whether an attribute of the module itself is read."""
    return any(
        isinstance(node, ast.Attribute) and node.attr in names and _is_self(node.value)
        for tree in trees
        for node in ast.walk(tree)
    )


class _Local(ast.NodeTransformer):
    """`self.config`, the fields and `self.numerics` as the constructor's arguments."""

    def __init__(self, names: Set[str]) -> None:
        self.names = names

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if _is_self(node.value) and node.attr in self.names and isinstance(node.ctx, ast.Load):
            return ast.Name(node.attr, ast.Load())
        self.generic_visit(node)
        return node


class _MethodReader(ast.NodeTransformer):
    """Methods that read weights as arrays, and the mode and keys of the module itself."""

    def __init__(self, name: str, constructors: Mapping[str, ModuleInit]) -> None:
        self.name, self.constructors = name, constructors
        # Loop variables → what they are.
        self.kinds: dict[str, Any] = {}

    def method(self, method: Method) -> Method:
        """The method as nnx has it."""
        self.kinds = {}
        body = [self.visit(_copy(statement)) for statement in method.body]
        return replace(method, body=body, result=self.visit(_copy(method.result)))

    def visit_For(self, node: ast.For) -> ast.stmt:
        self._bind(node.target, node.iter)
        self.generic_visit(node)
        return node

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        for generator in node.generators:
            self._bind(generator.target, generator.iter)
        self.generic_visit(node)
        return node

    visit_GeneratorExp = visit_ListComp  # type: ignore[assignment]

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.keywords = [each for each in node.keywords if each.arg != MODE]
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="self"), attr="make_rng"),
                args=[ast.Constant(value=stream)],
            ):
                return code(f"self.rngs.{stream!s}()")
            case ast.Call(func=ast.Name(id="partial"), args=[function], keywords=[]):
                bare: ast.expr = self.visit(function)
                return bare
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return code(f"self.{MODE}") if node.id == MODE else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        match node:
            case ast.Attribute(value=ast.Attribute(value=module, attr=name), attr="shape"):
                of = self._kind(module)
                if isinstance(of, ModuleInit) and name in of.held:
                    return node  # a variable has its array's shape
        owner = self._kind(node.value)
        held = owner.held.get(node.attr) if isinstance(owner, ModuleInit) else None
        self.generic_visit(node)
        return self._read(node.value, node, held)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        held = self._kind(node)
        self.generic_visit(node)
        return self._read(ast.Name("self", ast.Load()), node, held)

    def _read(self, owner: ast.expr, node: ast.expr, held: Any) -> ast.expr:
        """A variable as an array."""
        if not isinstance(held, HeldVariable):
            return node
        if held.cast:
            return code("{of}.cast({x})", of=owner, x=node)
        return code("{x}[...]", x=node)

    def _bind(self, target: ast.expr, over: ast.expr) -> None:
        """Note what a loop's variables are."""
        match target, over:
            case ast.Name(id=name), _:
                kind = self._kind(over)
                if isinstance(kind, list) and kind:
                    self.kinds[name] = kind[0]
            case ast.Tuple(elts=[_, inner]), ast.Call(func=ast.Name(id="enumerate"), args=[whole]):
                self._bind(inner, whole)
            case ast.Tuple(elts=targets), ast.Call(func=ast.Name(id="zip"), args=[*wholes]):
                for each, whole in zip(targets, wholes, strict=False):
                    self._bind(each, whole)

    def _kind(self, node: ast.expr) -> Any:
        """The class of an expression, as its constructor; a list or dict of these; None if unknown."""
        match node:
            case ast.Name(id="self"):
                return self.constructors.get(self.name)
            case ast.Name(id=name):
                return self.kinds.get(name)
            case ast.Attribute(value=inner, attr=name):
                owner = self._kind(inner)
                if isinstance(owner, dict):  # a Sequential
                    return owner.get(name)
                return owner.children.get(name) if isinstance(owner, ModuleInit) else None
            case ast.Subscript(value=inner, slice=ast.Constant(value=key)):
                owner = self._kind(inner)
                if isinstance(owner, dict):
                    return owner.get(key)
                if isinstance(owner, list) and isinstance(key, int):
                    return owner[key] if -len(owner) <= key < len(owner) else owner[0]
            case ast.Subscript(value=inner, slice=ast.Slice()):
                return self._kind(inner)
            case ast.Subscript(value=inner):
                owner = self._kind(inner)
                return owner[0] if isinstance(owner, list) and owner else None
        return None


def _copy(tree: Any) -> Any:
    if isinstance(tree, ast.AST):
        # Nodes keep what their comments hang on.
        new = type(tree)(**{name: _copy(value) for name, value in ast.iter_fields(tree)})
        vars(new).update({k: v for k, v in vars(tree).items() if k not in tree._fields})
        return new
    return [_copy(each) for each in tree] if isinstance(tree, list) else tree
