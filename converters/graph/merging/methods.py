"""Further methods of a model: each recorded by itself, then joined with the forward's graph."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import sympy
import torch

from converters.graph.ir import CALLS, Call, Free, Graph, Held, Op, Ref, Signature
from converters.graph.recording.trace import METHOD, GraphError
from converters.graph.writing.original.names import source_tree
from converters.other_method import calling

# Attributes of every class of a port, besides Flax's own.
_OF_PORTS = ("config", "dtype", "param_dtype", "precision", "dtypes", "numerics", "cast_param")


def further_methods(module: torch.nn.Module) -> tuple[str, ...]:
    """The public methods of a model, besides forward, that compute with the model's state.

    Methods of torch and of a library's base classes (`generate`, `get_input_embeddings`) are left
    out: only methods in the file of the model's class and in the user's own files count.
    """
    held = {*module._modules, *module._parameters, *module._buffers}
    own: dict[str, ast.AST] = {}
    for cls in type(module).__mro__:
        if not _is_own(cls, type(module)):
            continue
        for name, value in vars(cls).items():
            function = inspect.unwrap(value) if callable(value) else None
            if inspect.isfunction(function) and not hasattr(torch.nn.Module, name):
                own.setdefault(name, source_tree(function))
    computing: set[str] = set()
    while True:
        names = held | computing
        methods = {name for name, tree in own.items() if _computes(tree, names)}
        if methods == computing:
            break
        computing = methods
    return tuple(name for name in own if name in computing and not name.startswith("_"))


def _is_own(cls: type, of: type) -> bool:
    if cls.__module__.partition(".")[0] == "torch":
        return False
    if cls.__module__ == of.__module__:
        return True
    try:
        file = inspect.getsourcefile(cls) or ""
    except TypeError:
        return False
    return bool(file) and "site-packages" not in file


def _computes(tree: ast.AST, held: Collection[str]) -> bool:
    """Whether a method returns something computed from its module's state."""
    returns = [node for node in ast.walk(tree) if isinstance(node, ast.Return) and node.value]
    if not returns:  # it sets something: `freeze`, `reset_parameters`
        return False
    bare = {id(node.value) for node in returns}
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        and node.attr in held
        and id(node) not in bare
        for node in ast.walk(tree)
    )


def require_method(module: torch.nn.Module, method: str, api: str = "linen") -> None:
    """Raise GraphError if the model has no such method, or Flax has another method of that name."""
    there = further_methods(module)
    known = inspect.getattr_static(type(module), method, None)
    if (
        not inspect.isroutine(known)
        or isinstance(known, staticmethod | classmethod)
        or method == "forward"
        or hasattr(torch.nn.Module, method)
    ):
        names = ", ".join(there) or "none beside forward"
        raise GraphError(
            f"{type(module).__name__} has no method {method} of its own", f"its methods: {names}"
        )
    if method in _of_flax(api):
        raise GraphError(
            f"{type(module).__name__}.{method}: every Flax module has a {method} already",
            "give the original's method another name",
        )


def _of_flax(api: str) -> frozenset[str]:
    """Names of the attributes of every module of a port."""
    from flax import linen, nnx

    if api == "nnx":
        return frozenset({*dir(nnx.Module), *_OF_PORTS})

    class Plain(linen.Module):
        pass

    return frozenset({*dir(Plain), *Plain.__dataclass_fields__, *_OF_PORTS})


@contextmanager
def as_forward(module: torch.nn.Module, method: str) -> Iterator[None]:
    """Make a call of the model run another of its methods."""
    cls = type(module)
    module.__class__ = calling(cls, method)
    try:
        yield
    finally:
        module.__class__ = cls


@contextmanager
def methods_as_calls(module: torch.nn.Module) -> Iterator[None]:
    """Run other modules' calls of a part's methods as calls of the part, so that a recording shows
    them.
    """
    with ExitStack() as stack:
        for path, part in module.named_modules():
            names = further_methods(part) if path else ()
            if names:
                stack.enter_context(_methods_as_calls(part, names))
        yield


@contextmanager
def _methods_as_calls(part: torch.nn.Module, names: Sequence[str]) -> Iterator[None]:
    cls, running = type(part), [0]  # a method that the part calls itself is no other call

    def before(_: Any, args: Any) -> None:
        running[0] += 1

    def after(_: Any, args: Any, outputs: Any) -> None:
        running[0] -= 1

    def called(name: str) -> Callable[..., Any]:
        plain = getattr(part, name)
        other = calling(cls, name, **{METHOD: name})

        @functools.wraps(plain)
        def run(*args: Any, **kwargs: Any) -> Any:
            if running[0]:
                return plain(*args, **kwargs)
            part.__class__ = other
            try:
                return part(*args, **kwargs)
            finally:
                part.__class__ = cls

        return run

    hooks = (
        part.register_forward_pre_hook(before),
        part.register_forward_hook(after, always_call=True),
    )
    wrapped = {name: called(name) for name in names}
    vars(part).update(wrapped)
    try:
        yield
    finally:
        for name in wrapped:
            vars(part).pop(name, None)
        for hook in hooks:
            hook.remove()


def joined(graph: Graph, others: Mapping[str, Graph], tensors: Collection[str]) -> Graph:
    """Join the graph of a model with those of its further methods.

    Args:
        graph: graph of the forward.
        others: name of a method → its graph.
        tensors: names of the model's parameters and buffers.
    """
    facts, constants = dict(graph.facts), dict(graph.constants)
    named, kinds = dict(graph.named), dict(graph.kinds)
    body, entries = list(graph.root.body), []
    for place, (method, other) in enumerate(others.items(), 1):
        first = max(facts, default=-1) + 1
        renumbered = _Renumbered(first, place, method, tensors)
        facts |= {
            number + first: replace(fact, shape=renumbered.value(fact.shape))
            for number, fact in other.facts.items()
        }
        constants |= {renumbered.key(key): tensor for key, tensor in other.constants.items()}
        named |= {number + first: name for number, name in other.named.items()}
        kinds |= {number + first: kind for number, kind in other.kinds.items()}
        root = renumbered.call(other.root)
        body.append(replace(root, number=place, method=method))
        inputs = tuple((name, number + first) for name, number in other.inputs)
        entries.append(Signature(method, inputs, renumbered.value(other.outputs)))
    root = replace(graph.root, body=tuple(body))
    return replace(
        graph,
        root=root,
        facts=facts,
        constants=constants,
        methods=tuple(entries),
        named=named,
        kinds=kinds,
    )


def own_constants(
    constants: Mapping[str, Any], method: str, tensors: Collection[str]
) -> dict[str, Any]:
    """The tensors of a method's recording, by their names in the joined graph (`joined`)."""
    renumbered = _Renumbered(0, 0, method, tensors)
    return {renumbered.key(key): tensor for key, tensor in constants.items()}


class _Renumbered:
    """A method's numbers, constants, calls and free sizes, renumbered apart from other methods."""

    def __init__(self, first: int, place: int, method: str, tensors: Collection[str]) -> None:
        self.first, self.place, self.method, self.tensors = first, place, method, tensors

    def key(self, key: str) -> str:
        """The name of a tensor. Constants are counted per recording, so they are renamed."""
        return key if key in self.tensors else f"{key}_of_{self.method}"

    def value(self, value: Any) -> Any:
        """An argument, an output or a size."""
        match value:
            case Ref():
                return Ref(value.id + self.first)
            case Held():
                return Held(self.key(value.key))
            case Free():
                return Free(self._expression(value.expression), value.hint)
            case tuple() | list():
                return tuple(map(self.value, value))
            case dict():
                return {key: self.value(element) for key, element in value.items()}
        return value

    def _expression(self, expression: sympy.Expr) -> sympy.Expr:
        return expression.xreplace(
            {
                symbol: sympy.Symbol(f"{symbol.name}_of_{self.method}", **symbol.assumptions0)
                for symbol in expression.free_symbols
            }
        )

    def call(self, call: Call) -> Call:
        """A call, and all within it."""
        first = self.first
        return replace(
            call,
            number=call.number + self.place * CALLS,
            arguments=tuple(
                replace(each, value=self.value(each.value), inside=each.inside + first)
                for each in call.arguments
            ),
            taken=tuple(
                replace(each, inside=each.inside + first, outside=each.outside + first)
                for each in call.taken
            ),
            body=self._items(call.body),
        )

    def _items(self, items: Sequence[Any]) -> tuple[Any, ...]:
        renumbered: list[Any] = []
        for item in items:
            if isinstance(item, Op):
                outs = tuple(out + self.first if out >= 0 else out for out in item.outs)
                named = {key: self.value(argument) for key, argument in item.named.items()}
                arguments = self.value(item.arguments)
                renumbered.append(replace(item, arguments=arguments, named=named, outs=outs))
            elif isinstance(item, Call):
                renumbered.append(self.call(item))
            else:
                raise AssertionError("functions are found later")
        return tuple(renumbered)
