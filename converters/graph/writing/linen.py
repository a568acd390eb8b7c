"""The classes of a port as the source of Flax linen modules: the only file that knows how to write these."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from converters.graph.ops.functions import functions
from converters.graph.writing.classes import Class, Method, Model
from converters.graph.writing.forms.lists import written
from converters.graph.writing.original.comments import commented, of, placed
from converters.graph.writing.original.names import first_sentence
from converters.graph.writing.sources import copied


def modeling(
    model: Model,
    config: str,
    title: str,
    restored: Sequence[ast.FunctionDef] = (),
    layers: Sequence[type] = (),
    stubs: Mapping[str, str] | None = None,
) -> str:
    """The source of `modeling.py`.

    Args:
        model: the classes.
        config: the name of the configuration's class.
        title: the first line of the module's docstring.
        restored: functions of the original.
        layers: classes of ours that it uses.
        stubs: functions that are still to be written, and what for.
    """
    parts = [_stub(name, reason) for name, reason in (stubs or {}).items()]
    parts += [_unparsed(one) for one in restored]
    parts += [_class(cls, config) for cls in model.classes]
    needed = [functions()[name] for name in _functions(parts)] + list(layers)
    helpers, imports = copied(dict.fromkeys(needed))
    text = "\n\n\n".join((*helpers, *map(_unbracketed, parts)))
    return "\n".join((f'"""{title}"""', "", _imports(text, config, imports), "", "", text, ""))


def _unbracketed(text: str) -> str:
    """Source without the brackets that `ast.unparse` puts around a tuple that is returned or assigned."""

    def line(found: re.Match[str]) -> str:
        whole = ast.parse(found["tuple"], mode="eval").body
        try:
            plain = ast.parse(found["inner"], mode="eval").body
        except SyntaxError:
            return found[0]
        same = isinstance(whole, ast.Tuple) and ast.dump(plain) == ast.dump(whole)
        return f"{found['before']}{found['inner']}" if same else found[0]

    return re.sub(
        r"^(?P<before> *(?:return|[\w, .]+ =) )(?P<tuple>\((?P<inner>.*)\))$",
        line,
        text,
        flags=re.M,
    )


def configuration(model: Model, name: str, title: str) -> str:
    """The source of `config.py`."""
    lines = [
        f'"""{title}"""',
        "",
        "from dataclasses import dataclass",
        "",
        "",
        "@dataclass(frozen=True)",
        f"class {name}:",
        f'    """{title}"""',
        "",
        *(f"    {key}: {_kind(value)} = {value!r}" for key, value in model.settings.items()),
    ]
    return "\n".join(lines) + "\n"


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"tuple[{type(value[0]).__name__}, ...]"
    return type(value).__name__


def _stub(name: str, reason: str) -> str:
    signature = f"def {name}(*arguments: object, **named: object) -> jax.Array:"
    doc = ast.unparse(
        ast.Expr(ast.Constant("To be written: torch's operator, which has no lowering."))
    )
    return f"{signature}\n    {doc}\n    raise NotImplementedError({reason!r})"


def _imports(text: str, config: str, more: Iterable[str]) -> str:
    """The statements that the names in the source need."""
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    needed = {
        "jax": "import jax",
        "jnp": "import jax.numpy as jnp",
        "np": "import numpy as np",
        "nn": "from flax import linen as nn",
    }
    lines = [line for name, line in needed.items() if name in names]
    lines = list(dict.fromkeys((*more, *lines)))
    plain = [line for line in lines if not re.match(r"(import|from) (jax|flax|numpy)", line)]
    others = [line for line in lines if line not in plain]
    parts = ["from __future__ import annotations", "\n".join(plain), "\n".join(others)]
    if config in names:
        parts.append(f"from .config import {config}")
    return "\n\n".join(part for part in parts if part)


def _functions(parts: Sequence[str]) -> list[str]:
    """The functions of ours that are called."""
    called = {
        node.id
        for part in parts
        for node in ast.walk(ast.parse(part))
        if isinstance(node, ast.Name)
    }
    return [name for name in functions() if name in called]


def _class(cls: Class, config: str) -> str:
    body: list[ast.stmt] = []
    doc = first_sentence(cls.origin)
    if doc:
        body.append(ast.Expr(ast.Constant(doc)))
    if cls.configured:
        body.append(_field("config", config))
    body += [_field(name, kind) for name, kind in cls.fields.items()]
    methods: list[ast.stmt] = []
    for name, method in cls.methods.items():
        whole_sequences = _Sequences(_sequences(cls.setup))
        method.body = [whole_sequences.visit(one) for one in method.body]
        method.result = whole_sequences.visit(method.result)
        whole = [*method.body, commented(ast.Return(method.result), of(method.result))]
        methods.append(_function(name, method.arguments, whole, _returns(method), method.sizes))
    if cls.setup:
        setup = [written(one) for one in cls.setup]
        body.append(_function("setup", (), setup, None))
    body += methods
    made = ast.ClassDef(cls.name, [ast.parse("nn.Module", mode="eval").body], [], body, [])
    return _unparsed(made)


def _unparsed(made: ast.stmt) -> str:
    placed(made)
    return ast.unparse(ast.fix_missing_locations(made))


def _field(name: str, kind: str) -> ast.stmt:
    return ast.AnnAssign(ast.Name(name, ast.Store()), ast.Name(kind, ast.Load()), None, 1)


def _returns(method: Method) -> str:
    match method.result:
        case ast.Dict():
            return "dict[str, jax.Array]"
        case ast.Tuple(elts=parts):
            return f"tuple[{', '.join(['jax.Array'] * len(parts))}]"
    return "jax.Array"


def _function(
    name: str,
    arguments: Sequence[str],
    body: list[ast.stmt],
    returns: str | None,
    sizes: Sequence[str] = (),
) -> ast.stmt:
    kind = ast.parse("jax.Array", mode="eval").body
    given = [ast.arg("self"), *(ast.arg(one, kind) for one in arguments)]
    given += [ast.arg(one, ast.Name("int", ast.Load())) for one in sizes]
    result = ast.parse(returns or "None", mode="eval").body
    signature = ast.arguments([], given, None, [], [], None, [])
    return ast.FunctionDef(name, signature, body, [], result)


class _Sequences(ast.NodeTransformer):
    """The calls of all modules of a Sequential, each on what the one before gives, as its own call."""

    def __init__(self, lengths: Mapping[str, int]) -> None:
        self.lengths = lengths

    def visit_Call(self, node: ast.Call) -> ast.expr:
        inner: ast.expr = node
        owner, wanted = "", 0
        while isinstance(inner, ast.Call) and (member := _member(inner)):
            name, index = member
            if not owner:
                owner, wanted = name, self.lengths.get(name, 0) - 1
            if name != owner or index != wanted or len(inner.args) != 1 or inner.keywords:
                break
            inner, wanted = inner.args[0], wanted - 1
        if inner is not node and wanted == -1:
            return ast.Call(ast.parse(owner, mode="eval").body, [self.visit(inner)], [])
        return self.generic_visit(node)  # type: ignore[return-value]


def _member(node: ast.Call) -> tuple[str, int] | None:
    """`self.net.layers[2](x)` → ("self.net", 2)."""
    match node.func:
        case ast.Subscript(
            value=ast.Attribute(value=ast.Attribute() as owner, attr="layers"),
            slice=ast.Constant(value=int(index)),
        ):
            return ast.unparse(owner), index
    return None


def _sequences(setup: Sequence[ast.stmt]) -> dict[str, int]:
    """Sequentials that a constructor makes, whose modules are all there, and how many these are."""
    found = {}
    for one in setup:
        if not isinstance(one, ast.Assign) or not isinstance(one.value, ast.Call):
            continue
        made = one.value
        if ast.unparse(made.func) == "nn.Sequential" and isinstance(made.args[0], ast.List):
            parts = made.args[0].elts
            if not any(isinstance(part, ast.Lambda) for part in parts):
                found[ast.unparse(one.targets[0])] = len(parts)
    return found
