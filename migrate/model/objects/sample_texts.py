"""Parts of samples that are plainly texts, by the dataset that makes them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.catalogue.words import TEXT_METHODS
from migrate.model.calls.kinds import ClassInstance
from migrate.model.calls.rank_tests import last_part, parents
from migrate.model.calls.scopes import Function, ModuleScope
from migrate.model.objects.collating import GIVEN_AS

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis
    from migrate.model.calls.scopes import Scope, ValueBinding

Key = int | str
DEEPEST = 8
# Methods and functions that yield texts.
LISTS_OF_TEXTS = frozenset({"readlines", "rsplit", "split", "splitlines"})
NAMES_OF_FILES = frozenset({"glob.glob", "glob.iglob", "os.listdir"})
ROWS = frozenset({"csv.reader", "csv.DictReader"})
# Functions that yield the elements of their argument.
ORDERS = frozenset({"list", "reversed", "set", "sorted", "tuple"})


@lru_cache(maxsize=2)
def text_parts(analysis: Analysis) -> dict[Function, frozenset[Key]]:
    """Return which parts of its samples are texts, for each function that makes batches.

    A part counts only if it is a text in every dataset of every loader with the function.
    """
    texts: dict[Function, frozenset[Key]] = {}
    for call, ran in analysis.running.items():
        for keyword in call.keywords:
            if keyword.arg not in GIVEN_AS or isinstance(keyword.value, ast.Constant):
                continue
            for function in analysis.evaluator.values(keyword.value, ran.scope):
                if isinstance(function, Function):
                    parts = _of_loader(call, ran.scope, analysis)
                    texts[function] = texts.get(function, parts) & parts
    return texts


def _of_loader(call: ast.Call, scope: Scope, analysis: Analysis) -> frozenset[Key]:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "dataset"]
    datasets = [*named, *call.args[:1]]
    values = analysis.evaluator.values(datasets[0], scope) if datasets else ()
    parts: list[frozenset[Key]] = []
    for value in values:
        of = value.of if isinstance(value, ClassInstance) else None
        method = analysis.evaluator.method(of, "__getitem__") if of is not None else None
        if method is None:
            return frozenset()
        texts = _Texts(analysis)
        parts += [frozenset(texts.parts(returned, method)) for returned in method.returns]
    return frozenset.intersection(*parts) if parts else frozenset()


class _Texts:
    """Expressions that are plainly texts, or containers of texts only."""

    def __init__(self, analysis: Analysis) -> None:
        self._evaluator = analysis.evaluator

    def parts(self, sample: ast.expr, scope: Scope) -> Iterator[Key]:
        """Yield the positions and keys of a sample's texts."""
        if isinstance(sample, ast.Name):
            bindings = [*self._evaluator.bindings_of(sample.id, scope)]
            if len(bindings) == 1 and bindings[0].kind == "value" and bindings[0].value is not None:
                sample = bindings[0].value
        match sample:
            case ast.Tuple(elts=parts) if not any(isinstance(p, ast.Starred) for p in parts):
                yield from (at for at, part in enumerate(parts) if self.is_text(part, scope))
            case ast.Dict(keys=keys, values=parts):
                for key, part in zip(keys, parts, strict=True):
                    if isinstance(key, ast.Constant) and self.is_text(part, scope):
                        yield key.value if isinstance(key.value, int | str) else ""

    def is_text(self, node: ast.expr | None, scope: Scope, depth: int = 0) -> bool:
        """Whether `node` is plainly a text."""
        if depth > DEEPEST:
            return False
        match node:
            case ast.JoinedStr() | ast.Constant(value=str()):
                return True
            case ast.Call(func=ast.Name(id="str")):
                return True
            case ast.Call(func=ast.Attribute(attr=method)) if method in TEXT_METHODS:
                return method not in ("encode", "endswith", "startswith")
            case ast.Subscript(value=whole, slice=index) if not isinstance(index, ast.Slice):
                return self._holds_texts(whole, scope, depth + 1)
            case ast.BinOp(op=ast.Add() | ast.Mod(), left=left):
                return self.is_text(left, scope, depth + 1)
            case ast.Name() | ast.Attribute():
                bindings = self._bindings(node, scope)
                return bool(bindings) and all(self._gives_text(b, depth + 1) for b in bindings)
        return False

    def _gives_text(self, binding: ValueBinding, depth: int) -> bool:
        if binding.kind == "value":
            return self.is_text(binding.value, binding.scope, depth)
        if binding.kind == "element":
            return self._holds_texts(binding.value, binding.scope, depth)
        return False

    def _holds_texts(self, node: ast.expr | None, scope: Scope, depth: int) -> bool:
        """Whether the contents of `node` (values of a dictionary, or elements) are texts."""
        if depth > DEEPEST:
            return False
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Dict(values=parts):
                return bool(parts) and all(self.is_text(p, scope, depth + 1) for p in parts)
            case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part) | ast.DictComp(value=part):
                return self.is_text(part, scope, depth + 1)
            case ast.Call(func=ast.Attribute(attr=method)) if method in LISTS_OF_TEXTS:
                return True
            case ast.Call(func=ast.Name(id=name), args=[first]) if name in ORDERS:
                return self._holds_texts(first, scope, depth + 1)
            case ast.Call(func=called):
                return bool(self._evaluator.externals(called, scope) & NAMES_OF_FILES)
            case ast.Name() | ast.Attribute():
                bindings = [b for b in self._bindings(node, scope) if not _is_empty(b.value)]
                put = [*self._put_into(node, scope)]
                return bool(bindings or put) and (
                    all(self._gives_texts(b, depth + 1) for b in bindings)
                    and all(self.is_text(value, at, depth + 1) for value, at in put)
                )
        return False

    def _put_into(
        self, holder: ast.Name | ast.Attribute, scope: Scope
    ) -> Iterator[tuple[ast.expr, Scope]]:
        """Yield the values put into `holder`: `self.captions[name] = x`, `self.names.append(x)`."""
        text = ast.unparse(holder)
        for node in scope.module.nodes:
            match node:
                case ast.Assign(targets=[ast.Subscript(value=whole)], value=value):
                    pass
                case ast.Call(func=ast.Attribute(value=whole, attr="append"), args=[value]):
                    pass
                case _:
                    continue
            if isinstance(whole, ast.Name | ast.Attribute) and ast.unparse(whole) == text:
                yield value, _scope_of(node, scope.top)

    def _gives_texts(self, binding: ValueBinding, depth: int) -> bool:
        if binding.kind == "value":
            return self._holds_texts(binding.value, binding.scope, depth)
        return binding.kind == "element" and self._holds_rows(binding.value, binding.scope, depth)

    def _holds_rows(self, node: ast.expr | None, scope: Scope, depth: int) -> bool:
        """Whether `node` yields the rows of a table of texts: `csv.reader(file)`, also through a name."""
        if isinstance(node, ast.Name) and depth <= DEEPEST:
            bindings = self._bindings(node, scope)
            return bool(bindings) and all(
                b.kind == "value" and self._holds_rows(b.value, b.scope, depth + 1)
                for b in bindings
            )
        if isinstance(node, ast.Call) and last_part(node.func) == "enumerate" and node.args:
            return self._holds_rows(node.args[0], scope, depth + 1)  # a number has no items
        externals = (
            self._evaluator.externals(node.func, scope) if isinstance(node, ast.Call) else ()
        )
        return bool(ROWS.intersection(externals))

    def _bindings(self, node: ast.Name | ast.Attribute, scope: Scope) -> list[ValueBinding]:
        if isinstance(node, ast.Name):
            return [*self._evaluator.bindings_of(node.id, scope)]
        return [*self._evaluator.members_of(node.value, node.attr, scope)]


def _is_empty(value: ast.expr | None) -> bool:
    """Whether `value` is a container that is filled later: `{}`, `[]`, `dict()`."""
    match value:
        case ast.Dict(values=[]) | ast.List(elts=[]):
            return True
        case ast.Call(func=ast.Name(id="dict" | "list"), args=[], keywords=[]):
            return True
    return False


def _scope_of(node: ast.AST, top: ModuleScope) -> Scope:
    """Return the function whose body contains `node`, or the module."""
    above = parents(top.module)
    around = above.get(node)
    while around is not None:
        if isinstance(around, ast.FunctionDef):
            name, line = around.name, around.lineno
            return next((f for f in top.functions if (f.name, f.line) == (name, line)), top)
        around = above.get(around)
    return top
