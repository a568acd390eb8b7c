"""The expressions that make a model and its parts: the models that it wraps, at any depth.

`Policy(config)` with `self.expert = Expert(config)` in its `__init__`, and in that of `Expert` a language
model of transformers; `nn.ModuleList([…])`, `get_peft_model(model, …)`, what a function returns.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.reading.calls.kinds import Instance
from migrate.reading.calls.passing import passed_by
from migrate.reading.calls.scopes import Binding, Class, Function, Scope
from migrate.reading.replicas.rank_tests import last_part
from migrate.reading.values.words import MODULE_METHODS

if TYPE_CHECKING:
    from migrate.reading.calls.analysis import Analysis

Part = tuple[ast.expr, Scope]

MOST_PARTS = 500
# Methods whose result is the object, or the modules in it.
OF_PARTS = MODULE_METHODS | {"children", "get", "items", "modules", "pop", "to", "values"}
# Objects that yield data: what they hold is no part of what they yield.
OF_DATA = re.compile(r"(?i).*(loader|dataset|sampler|tokenizer|processor|datamodule)")
# The option by which a configuration of transformers says whether the embedding is shared.
TIES_WORDS = "tie_word_embeddings"


def parts_of(model: ast.expr, scope: Scope, analysis: Analysis) -> Iterator[Part]:
    """Yield `model`, what it is made by, and what its parts are made by, each with where it stands."""
    evaluator = analysis.evaluator
    seen: set[tuple[int, int]] = set()
    waiting: list[Part] = [(model, scope)]
    while waiting and len(seen) < MOST_PARTS:
        node, at = waiting.pop()
        if (id(node), id(at)) in seen:
            continue
        seen.add((id(node), id(at)))
        yield node, at
        match node:
            case ast.Name(id=name):
                waiting += _given(evaluator.bindings_of(name, at), analysis)
            case ast.Attribute(value=of, attr=name):
                waiting += _given(evaluator.members_of(of, name, at), analysis)
            case ast.Call():
                waiting += _of_call(node, at, analysis)
            case ast.IfExp(body=body, orelse=orelse):
                waiting += [(body, at), (orelse, at)]
            case ast.Dict(values=values) | ast.BoolOp(values=values):
                waiting += [(value, at) for value in values]
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                waiting += [(element, at) for element in elements]
            case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part) | ast.DictComp(value=part):
                waiting.append((part, at))
            case ast.Subscript(value=part) | ast.Starred(value=part) | ast.NamedExpr(value=part):
                waiting.append((part, at))
        for value in evaluator.values(node, at):
            if isinstance(value, Instance) and not _is_of_data(value, analysis):
                for made in evaluator.ancestors(value.of):
                    bindings = [b for named in list(made.attributes.values()) for b in named]
                    waiting += _given(bindings, analysis)


def is_untied(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether `call`, which makes a language model, or its configuration, is told to share no weights."""
    arguments = [*call.args, *(k.value for k in call.keywords if k.arg is not None)]
    calls = [call]
    for argument in arguments:
        for part, _ in parts_of(argument, scope, analysis):
            calls += [part] if isinstance(part, ast.Call) else []
        if isinstance(argument, ast.Name) and _is_set_apart(argument.id, scope):
            return True
    return any(
        keyword.arg == TIES_WORDS
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is False
        for made in calls
        for keyword in made.keywords
    )


def _is_of_data(instance: Instance, analysis: Analysis) -> bool:
    """Whether an object is of a class of datasets, loaders or samplers."""
    names = (instance.of.name, *analysis.evaluator.external_bases(instance.of))
    return any(OF_DATA.fullmatch(name) for name in names)


def _is_set_apart(name: str, scope: Scope) -> bool:
    """Whether the file says `name.tie_word_embeddings = False`."""
    return any(
        isinstance(binding.value, ast.Constant)
        and binding.value.value is False
        and isinstance(receiver, ast.Name)
        and receiver.id == name
        for receiver, binding in scope.top.assigned.get(TIES_WORDS, ())
    )


def _given(bindings: Iterator[Binding] | list[Binding], analysis: Analysis) -> Iterator[Part]:
    """Yield the expressions that names are bound to."""
    for binding in bindings:
        if binding.kind == "param" and isinstance(binding.scope, Function):
            yield from passed_nodes(analysis).get((binding.scope, binding.name), ())
        elif binding.value is not None:
            value = binding.value
            if binding.kind == "item" and isinstance(value, ast.Tuple | ast.List):
                value = value.elts[binding.index] if binding.index < len(value.elts) else value
            yield value, binding.scope


def _of_call(call: ast.Call, scope: Scope, analysis: Analysis) -> Iterator[Part]:
    """Yield what the result of `call` is made of, as far as it holds models."""
    func = call.func
    if OF_DATA.fullmatch(last_part(func)):
        return
    method = func.attr if isinstance(func, ast.Attribute) else ""
    if isinstance(func, ast.Attribute) and method in OF_PARTS:
        yield func.value, scope
    ran = analysis.running.get(call)
    functions = ran.functions if ran is not None else []
    if any(isinstance(value, Class) for value in analysis.evaluator.values(func, scope)):
        return  # its attributes are followed
    for function in functions:
        yield from ((returned, function) for returned in function.returns)
    if not functions and method not in OF_PARTS:
        yield from ((argument, scope) for argument in call.args)
        yield from ((k.value, scope) for k in call.keywords if k.arg is not None)


@lru_cache(maxsize=2)
def passed_nodes(analysis: Analysis) -> dict[tuple[Function, str], list[Part]]:
    """Return what the calls of a project pass for the parameters of its functions."""
    found: dict[tuple[Function, str], list[Part]] = defaultdict(list)
    for ran in list(analysis.running.values()):
        for passed in passed_by(ran, analysis.evaluator):
            if passed.node is not None and isinstance(passed.to, Function):
                found[passed.to, passed.name].append((passed.node, ran.scope))
    return found
