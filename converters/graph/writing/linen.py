"""The classes of a port as the source of Flax linen modules: the only file that knows how to write these."""

from __future__ import annotations

import ast
import copy
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from converters.graph.expression import plain_exponents
from converters.graph.ops.functions import functions
from converters.graph.writing.boundaries import ATTEND, CONSTRAIN, SHARDING
from converters.graph.writing.forms.alike import shortened
from converters.graph.writing.forms.lists import written
from converters.graph.writing.model import Class, Method, Model
from converters.graph.writing.original.comments import commented, of, placed
from converters.graph.writing.original.names import docstring
from converters.graph.writing.original.tables import with_variables
from converters.graph.writing.precision.dtypes import ARGUMENT
from converters.graph.writing.precision.numerics import BASE, base
from converters.graph.writing.precision.rounding import rounding_once
from converters.graph.writing.sources import copied
from converters.graph.writing.training import MODE


@dataclass(frozen=True)
class Spelling:
    """Spelling of a model in an API of Flax.

    Attributes:
        class_: a class, the configuration's name and names that are taken → its source.
        base: the source of all classes → the class that they are derived from.
        functions: functions of ours that a port may call.
        final: the last change of the whole source.
    """

    class_: Callable[[Class, str, Set[str]], str]
    base: Callable[[str], str]
    functions: Mapping[str, Any]
    final: Callable[[str], str] = str


def modeling(
    model: Model,
    config: str,
    title: str,
    restored: Sequence[ast.FunctionDef | ast.ClassDef] = (),
    layers: Sequence[type] = (),
    stubs: Mapping[str, str] | None = None,
    exact: bool = False,
    api: Spelling | None = None,
) -> str:
    """The source of `modeling.py`.

    Args:
        model: the classes.
        config: the name of the configuration's class.
        title: the first line of the module's docstring.
        restored: functions and records of the original.
        layers: classes of ours that it uses.
        stubs: functions that are still to be written, and what for.
        exact: whether layers and activations round once in 16 bits.
        api: spelling of another API of Flax; None: linen's.
    """
    api = api or Spelling(unparsed_class, base, functions())
    parts = [_stub(name, reason) for name, reason in (stubs or {}).items()]
    parts += [unparsed(function) for function in restored]
    taken = {*api.functions, *(function.name for function in restored), *(stubs or {})}
    parts += [api.class_(cls, config, taken) for cls in model.classes]
    if exact:
        parts = [rounding_once(part) for part in parts]
    needed = [api.functions[name] for name in _functions(parts, api.functions)] + list(layers)
    helpers, imports = copied(dict.fromkeys(needed))
    above = [api.base("\n".join(parts))] if any(cls.typed for cls in model.classes) else []
    text = "\n\n\n".join((*helpers, *filter(None, above), *map(_unbracketed, parts)))
    if not any(cls.name == "Array" for cls in model.classes):
        text = re.sub(r"\bjax\.Array\b", "Array", text)
    text = api.final(text)
    doc = textwrap.wrap(f'"""{title}"""', 100, break_long_words=False, break_on_hyphens=False)
    return plain_exponents("\n".join((*doc, "", _imports(text, config, imports), "", "", text, "")))


def _unbracketed(text: str) -> str:
    """Source without the brackets that `ast.unparse` puts around a tuple that is returned or assigned, and
    around a negative exponent.
    """

    def line(match: re.Match[str]) -> str:
        whole = ast.parse(match["tuple"], mode="eval").body
        try:
            plain = ast.parse(match["inner"], mode="eval").body
        except SyntaxError:
            return match[0]
        same = isinstance(whole, ast.Tuple) and ast.dump(plain) == ast.dump(whole)
        return f"{match['before']}{match['inner']}" if same else match[0]

    text = re.sub(r"(?<=\*\*) ?\((-[\d.]+)\)", r" \1", text)
    return re.sub(
        r"^(?P<before> *(?:return|[\w, .]+ =) )(?P<tuple>\((?P<inner>.*)\))$",
        line,
        text,
        flags=re.M,
    )


def configuration(
    model: Model,
    name: str,
    title: str,
    held: Mapping[str, Any] | None = None,
    lengths_free: Set[str] = frozenset(),
) -> str:
    """The source of `config.py`.

    Args:
        model: the classes.
        name: the name of the configuration's class.
        title: the first line of its docstring.
        held: settings that may have one value only; those that the source does not read are added.
        lengths_free: sequences that may have another number of entries.
    """
    settings = {**model.settings, **(held or {})}
    order = {name: at for at, name in enumerate(model.order)}
    of_original = {name: model.sources.get(name, (name, ()))[0] for name in settings}
    last = len(order)
    settings = dict(
        sorted(settings.items(), key=lambda setting: order.get(of_original[setting[0]], last))
    )
    lengths = {
        key: len(value)
        for key, value in settings.items()
        if isinstance(value, tuple) and key not in {*lengths_free, *(held or {})}
    }
    constants = [
        *_table("HELD", held or {}, "Sizes that modeling.py does not follow: see README.md."),
        *_table("LENGTHS", lengths, "Numbers of entries: modeling.py has a place for so many."),
    ]
    lines = [
        f'"""{title}"""',
        "",
        "from dataclasses import dataclass",
        "",
        *constants,
        "",
        "@dataclass(frozen=True)",
        f"class {name}:",
        f'    """{title}"""',
        "",
        *(
            f"    {key}: {_kind(value)} = {value!r}"
            for key, value in {**settings, **model.options}.items()
        ),
        *(_REFUSE if constants else []),
        *(_REFUSE_VALUES if held else []),
        *(_REFUSE_LENGTHS if lengths else []),
    ]
    return plain_exponents("\n".join(lines) + "\n")


def _table(name: str, values: Mapping[str, Any], comment: str) -> list[str]:
    inner = [f"    {key!r}: {value!r}," for key, value in values.items()]
    return [f"# {comment}", f"{name} = {{", *inner, "}"] if values else []


_REFUSE = [
    "",
    "    def __post_init__(self) -> None:",
    '        """Refuse sizes that modeling.py does not follow."""',
]
_REFUSE_VALUES = [
    "        for name, value in HELD.items():",
    "            if getattr(self, name) != value:",
    '                problem = f"{name}={getattr(self, name)!r}: modeling.py supports {value!r} only"',
    "                raise ValueError(f\"{type(self).__name__}: {problem}; see 'Sizes' in README.md\")",
]
_REFUSE_LENGTHS = [
    "        for name, length in LENGTHS.items():",
    "            if len(getattr(self, name)) != length:",
    '                problem = f"{name}={getattr(self, name)!r}: modeling.py has a place for {length}"',
    "                raise ValueError(f\"{type(self).__name__}: {problem}; see 'Sizes' in README.md\")",
]


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


# Name → the statement that a source needs that reads it.
IMPORTED = {
    "math": "import math",
    "Any": "from typing import Any",
    "NamedTuple": "from typing import NamedTuple",
    "DTypeLike": "from jax.typing import DTypeLike",
    "flax": "import flax",
    "jax": "import jax",
    "Array": "from jax import Array",
    "jnp": "import jax.numpy as jnp",
    "np": "import numpy as np",
    "partial": "from functools import partial",
    "Callable": "from collections.abc import Callable",
    "nn": "from flax import linen as nn",
    "nnx": "from flax import nnx",
}


def _imports(text: str, config: str, more: Iterable[str]) -> str:
    """The statements that the names in the source need."""
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    lines = [line for name, line in IMPORTED.items() if name in names]
    lines = list(dict.fromkeys((*more, *lines)))
    plain = [line for line in lines if not re.match(r"(import|from) (jax|flax|numpy)", line)]
    others = [line for line in lines if line not in plain]
    parts = ["from __future__ import annotations", "\n".join(plain), "\n".join(others)]
    own = [f"from .config import {config}"] if config in names else []
    shared = [name for name in (ATTEND, CONSTRAIN) if name in names]
    own += [f"from .{SHARDING} import {', '.join(shared)}"] if shared else []
    if own:
        parts.append("\n".join(own))
    return "\n\n".join(part for part in parts if part)


def _functions(parts: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """The functions of ours that are called."""
    called = {
        node.id
        for part in parts
        for node in ast.walk(ast.parse(part))
        if isinstance(node, ast.Name)
    }
    return [name for name in known if name in called]


def unparsed_class(cls: Class, config: str, taken: Set[str]) -> str:
    """The source of a class.

    Args:
        cls: the class.
        config: the name of the configuration's class.
        taken: names that stand for something else in the port.
    """
    body: list[ast.stmt] = []
    doc = docstring(cls.origin)
    if doc:
        body.append(ast.Expr(ast.Constant(doc)))
    if cls.configured:
        body.append(_field("config", config))
    body += [_field(name, kind) for name, kind in cls.fields.items()]
    methods = methods_of(cls)
    if cls.setup:
        setup = shortened(with_variables(list(map(written, cls.setup))), taken)
        body.append(definition_of("setup", None, setup, "None"))
    body += methods
    above = BASE if cls.typed else "nn.Module"
    definition = ast.ClassDef(cls.name, [ast.parse(above, mode="eval").body], [], body, [])
    return unparsed(definition)


def methods_of(cls: Class) -> list[ast.stmt]:
    """The methods of a class."""
    methods: list[ast.stmt] = []
    for name, method in cls.methods.items():
        doc = re.sub(r"\n(?= )", "\n    ", method.doc)
        said = [ast.Expr(ast.Constant(doc))] if doc else []
        body = [*method.body, commented(ast.Return(method.result), of(method.result))]
        # A copy: the class may be written again.
        first = commented(copy.copy(body[0]), (*method.comments, *of(body[0])))
        whole = [*said, first, *body[1:]]
        methods.append(definition_of(name, method, whole, _returns(method), cls.takes_mode))
    return methods


def unparsed(statement: ast.stmt) -> str:
    """The source of a statement, with its comments."""
    placed(statement)
    return ast.unparse(ast.fix_missing_locations(statement))


def _field(name: str, kind: str) -> ast.stmt:
    return ast.AnnAssign(ast.Name(name, ast.Store()), ast.Name(kind, ast.Load()), None, 1)


def _returns(method: Method) -> str:
    match method.result:
        case ast.Dict(values=values):
            some = any(isinstance(value, ast.IfExp) and _gives_none(value) for value in values)
            return f"dict[str, jax.Array{' | None' * some}]"
        case ast.Call(func=ast.Name(id="tuple")):
            return "tuple[jax.Array, ...]"
        case ast.Tuple(elts=parts) if any(isinstance(part, ast.Starred) for part in parts):
            kinds = (
                "*tuple[jax.Array, ...]" if isinstance(part, ast.Starred) else "jax.Array"
                for part in parts
            )
            return f"tuple[{', '.join(kinds)}]"
        case ast.Tuple(elts=parts):
            kinds = (
                "jax.Array | None"
                if place in method.absent
                else method.result_kinds.get(place, "jax.Array")
                for place in range(len(parts))
            )
            return f"tuple[{', '.join(kinds)}]"
    return method.result_kinds.get(0, "jax.Array")


def _gives_none(choice: ast.IfExp) -> bool:
    return any(isinstance(branch, ast.Constant) for branch in (choice.body, choice.orelse))


def definition_of(
    name: str, method: Method | None, body: list[ast.stmt], returns: str, takes_mode: bool = False
) -> ast.stmt:
    """The definition of a method."""
    parameters = [ast.arg("self")]
    defaults: list[ast.expr] = []
    if method is not None:
        kinds = dict.fromkeys(method.arguments, "jax.Array") | dict.fromkeys(method.sizes, "int")
        kinds |= method.kinds
        if ARGUMENT in kinds:
            kinds[ARGUMENT] = "DTypeLike"
        left_out = method.optional | method.spared
        for parameter in method.parameters():
            spared = parameter in left_out
            kind = (
                f"{kinds[parameter]} | None"
                if spared or parameter in method.nullable
                else kinds[parameter]
            )
            parameters.append(ast.arg(parameter, ast.parse(kind, mode="eval").body))
            defaults += [ast.Constant(None)] if spared else []
        if takes_mode:
            parameters.append(ast.arg(MODE, ast.Name("bool", ast.Load())))
            defaults.append(ast.Constant(True))
    result = ast.parse(returns, mode="eval").body
    signature = ast.arguments([], parameters, None, [], [], None, defaults)
    return ast.FunctionDef(name, signature, body, [], result)
