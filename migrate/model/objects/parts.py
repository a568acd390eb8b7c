"""Expressions that make a model and its parts: the models that it wraps, at any depth.

Examples: `Policy(config)` with `self.expert = Expert(config)` in its `__init__`, and a language model of
transformers in that of `Expert`; `nn.ModuleList([…])`, `get_peft_model(model, …)`, the return value of a
function.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from migrate.catalogue.words import MODULE_METHODS
from migrate.model.calls.kinds import ClassInstance, External
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Class, Function, Scope, ValueBinding

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

Part = tuple[ast.expr, Scope]

MOST_PARTS = 4000
# Methods whose result is the object, or the modules in it.
OF_PARTS = MODULE_METHODS | {"children", "get", "items", "modules", "pop", "to", "values"}
# Classes that yield data: their contents are no part of the data.
OF_DATA = re.compile(r"(?i).*(loader|dataset|sampler|tokenizer|processor|datamodule)")
# Maximum number of names followed from a loop to its iterable.
MOST_NAMES = 4
# Functions of torch that take tensors, and give tensors.
OF_TENSORS = re.compile(r"torch\.(?!compile$)[a-z]\w*|torch\.nn\.functional\.\w+")
# Methods that run a module: their result is no module.
RUNS = frozenset({"forward", "__call__"})
# The option by which a configuration of transformers says whether the embedding is shared.
TIES_WORDS = "tie_word_embeddings"
# Configurations of transformers that share no embedding unless they are given the option (measured with 5.23,
# which shares it for some architectures of a name that begins alike).
UNTIED = re.compile(
    r"transformers\.([\w.]+\.)?(Llama|Mistral|Mixtral|Qwen2|Qwen3|Qwen2Moe|Qwen3Moe|Phi|Phi3|GPTNeoX|GPTJ"
    r"|Olmo|Olmo2|DeepseekV2|DeepseekV3|StableLm)Config"
)


def parts_of(model: ast.expr, scope: Scope, analysis: Analysis) -> Iterator[Part]:
    """Yield `model` and the expressions that make it and its parts, each with its scope."""
    evaluator = analysis.evaluator
    seen: set[tuple[int, int]] = set()
    # The nearest first: what makes the model itself is not lost where a part holds a long table.
    waiting: deque[Part] = deque([(model, scope)])
    while waiting and len(seen) < MOST_PARTS:
        node, at = waiting.popleft()
        if isinstance(node, ast.Constant) or (id(node), id(at)) in seen:
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
            case ast.Subscript(value=part, slice=ast.Constant(value=str(key))) if items := list(
                evaluator.items_at(part, key, at)
            ):
                waiting += items
            case ast.Subscript(value=part) | ast.Starred(value=part) | ast.NamedExpr(value=part):
                waiting.append((part, at))
        instances = (v for v in evaluator.values(node, at) if isinstance(v, ClassInstance))
        for value in sorted(instances, key=_place):  # a set: in the same order in each run
            if not _is_of_data(value, analysis):
                for ancestor in evaluator.ancestors(value.of):
                    bindings = [b for named in list(ancestor.attributes.values()) for b in named]
                    waiting += _given(bindings, analysis)


def _place(instance: ClassInstance) -> tuple[str, str]:
    return str(instance.of.module.path), instance.of.name


def is_untied(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether `call`, which makes a language model or its configuration, switches off shared weights."""
    arguments = [*call.args, *(k.value for k in call.keywords if k.arg is not None)]
    calls = [call]
    for argument in arguments:
        for part, _ in parts_of(argument, scope, analysis):
            calls += [part] if isinstance(part, ast.Call) else []
        if isinstance(argument, ast.Name) and _is_set_apart(argument.id, scope):
            return True
        if _is_untied_configuration(argument, scope, analysis):
            return True
    return any(
        keyword.arg == TIES_WORDS
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is False
        for call in calls
        for keyword in call.keywords
    )


def _is_untied_configuration(node: ast.expr, scope: Scope, analysis: Analysis) -> bool:
    """Whether `node` is a configuration of transformers that is made here, without the option to share."""
    match node:
        case ast.Name(id=name):
            if TIES_WORDS in scope.top.assigned:
                return False
            bindings = list(analysis.evaluator.bindings_of(name, scope))
            return bool(bindings) and all(
                binding.kind == "value"
                and isinstance(binding.value, ast.Call)
                and _is_untied_configuration(binding.value, binding.scope, analysis)
                for binding in bindings
            )
        case ast.Call(func=func, keywords=keywords):
            makers = analysis.evaluator.values(func, scope)
            return (
                bool(makers)
                and all(isinstance(v, External) and UNTIED.fullmatch(v.name) for v in makers)
                and all(keyword.arg not in (None, TIES_WORDS) for keyword in keywords)
            )
    return False


def _is_of_data(instance: ClassInstance, analysis: Analysis) -> bool:
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


def _given(
    bindings: Iterator[ValueBinding] | list[ValueBinding], analysis: Analysis
) -> Iterator[Part]:
    """Yield the values that names are bound to."""
    for binding in bindings:
        if binding.kind == "element" and _yields_data(binding.value, binding.scope, analysis):
            continue
        if binding.kind == "param" and isinstance(binding.scope, Function):
            yield from passed_nodes(analysis).get((binding.scope, binding.name), ())
        elif binding.value is not None:
            value = binding.value
            if binding.kind == "item":
                yield from _items(value, binding.index, binding.scope, analysis)
            else:
                yield value, binding.scope


def _items(value: ast.expr, index: int, scope: Scope, analysis: Analysis) -> Iterator[Part]:
    """Yield element number `index` of a tuple: written here, or returned by the functions of a call."""
    if isinstance(value, ast.Tuple | ast.List):
        yield (value.elts[index] if index < len(value.elts) else value), scope
        return
    ran = analysis.running.get(value) if isinstance(value, ast.Call) else None
    returned = [(node, f) for f in (ran.functions if ran is not None else ()) for node in f.returns]
    elements = [
        (node.elts[index], function)
        for node, function in returned
        if isinstance(node, ast.Tuple | ast.List)
        and index < len(node.elts)
        and not any(isinstance(part, ast.Starred) for part in node.elts)
    ]
    if returned and len(elements) == len(returned):
        yield from elements
    else:
        yield value, scope


def _yields_data(
    node: ast.expr | None, scope: Scope, analysis: Analysis, depth: int = MOST_NAMES
) -> bool:
    """Whether a loop over `node` yields batches: from a loader or a wrapper, such as `tqdm(loader)`."""
    match node:
        case ast.Subscript(value=inner):
            return _yields_data(inner, scope, analysis, depth)
        case ast.Call(func=func, args=args):
            nodes = [func.value, *args] if isinstance(func, ast.Attribute) else args
            named = OF_DATA.fullmatch(last_part(func).removesuffix("s")) is not None
            return named or any(_yields_data(part, scope, analysis, depth) for part in nodes)
        case ast.Name() | ast.Attribute():
            if OF_DATA.fullmatch(last_part(node).removesuffix("s")):
                return True
            values = analysis.evaluator.values(node, scope)
            if any(
                isinstance(value, ClassInstance) and _is_of_data(value, analysis)
                for value in values
            ):
                return True
            bindings = analysis.evaluator.origins(node, scope) if depth else ()
            return any(
                _yields_data(binding.value, binding.scope, analysis, depth - 1)
                for binding in bindings
            )
    return False


def _of_call(call: ast.Call, scope: Scope, analysis: Analysis) -> Iterator[Part]:
    """Yield the parts of the result of `call`, as far as they hold models."""
    func = call.func
    if OF_DATA.fullmatch(last_part(func)):
        return
    method = func.attr if isinstance(func, ast.Attribute) else ""
    if isinstance(func, ast.Attribute) and method in OF_PARTS:
        yield func.value, scope
    ran = analysis.running.get(call)
    functions = ran.functions if ran is not None else []
    called = analysis.evaluator.values(func, scope)
    if any(isinstance(value, Class) for value in called):
        return  # its attributes are followed
    if any(isinstance(callee, External) and OF_TENSORS.fullmatch(callee.name) for callee in called):
        return
    if isinstance(func, ast.Name) and func.id == "getattr":
        yield from ((default, scope) for default in call.args[2:])
        return  # the values of the attribute count, not the object that has it
    for function in functions:
        if function.name in RUNS and function.owner is not None:
            continue
        yield from ((returned, function) for returned in function.returns)
    if not functions and method not in OF_PARTS:
        yield from ((argument, scope) for argument in call.args)
        yield from ((k.value, scope) for k in call.keywords if k.arg is not None)


def assigned_or_passed(bindings: Iterable[ValueBinding], analysis: Analysis) -> Iterator[Part]:
    """Yield the values of a name: assigned to it, or passed for it as a parameter."""
    for binding in bindings:
        if binding.kind == "param" and isinstance(binding.scope, Function):
            yield from passed_nodes(analysis).get((binding.scope, binding.name), ())
        elif binding.kind == "value" and binding.value is not None:
            yield binding.value, binding.scope


@lru_cache(maxsize=2)
def passed_nodes(analysis: Analysis) -> dict[tuple[Function, str], list[Part]]:
    """Return the arguments that the calls of a project pass to its functions."""
    parts: dict[tuple[Function, str], list[Part]] = defaultdict(list)
    for passed in chain.from_iterable(analysis.passed.values()):
        if passed.node is not None and isinstance(passed.to, Function):
            parts[passed.to, passed.name].append((passed.node, passed.scope))
    return parts
