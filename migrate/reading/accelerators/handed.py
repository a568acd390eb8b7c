"""Parameters that are handed, with the model, to code outside of the project: optimizers perhaps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from migrate.reading.accelerators.programs import programs_of
from migrate.reading.calls.analysis import Analysis
from migrate.reading.calls.kinds import External
from migrate.reading.calls.scopes import Function, ModuleScope, Region, Scope
from migrate.reading.calls.training import is_optimizer_value
from migrate.reading.values.words import LOADER, MODEL, SAVE, SCHEDULE

# What is called so is no optimizer; nothing else is known of these parameters.
OTHERS = re.compile(
    r"args?|arguments|batch|cfg|config|criterion|data|dataset|datasets|dev|device|dir|epoch|file|gpu|h?params"
    r"|hyp|images?|inputs?|iteration|labels?|local_rank|log|logger|loss|loss_fn|metrics?|mode|name|options?"
    r"|opts|path|prefix|rank|sched|scheduler|size|split|step|tag|targets?|tokenizer|vocab|world_size|writer"
    r"|x|y|.*(_(args|cfg|config|data|dir|file|fn|id|ids|loader|loss|name|path|rank|size|step|steps))",
    re.IGNORECASE,
)
KEEPS = re.compile(r"append|print|prepare|watch|isinstance|len|get_\w+|log\w*|load\w*|restore\w*")
HANDED_ON = (
    "`{}`, which the project does not contain, is given an optimizer in every turn of this loop: if it "
    "trains, write `# migrate: step` above the loop, or see that it ends its steps itself"
)
OF_TORCH = ("torch.", "torchvision.", "numpy.", "builtins.")


def handed_with(
    model: str, given: Function, scope: Function, analysis: Analysis
) -> Iterator[tuple[str, str]]:
    """Yield the parameters that go with a model to code of which nothing is known, and that code.

    Args:
        model: how `scope` spells the model: `net`, `self.net`.
        given: the function that has the parameters: `scope`, or what makes an object of its class.
        scope: the function that moves the model.
        analysis: of the project.
    """
    owner = _node_of(scope, analysis)
    maker = _node_of(given, analysis)
    if owner is None or maker is None:
        return
    for name in given.parameters:
        default, annotations = given.declared.get(name, (None, []))
        plain = default is None and not annotations and name not in ("self", "cls")
        if not plain or any(word.fullmatch(name) for word in (OTHERS, LOADER, MODEL)):
            continue
        spelled = name if given is scope else _kept_as(name, maker)
        if spelled is None or spelled == model:
            continue
        calls = list(_handing(spelled, model, scope, analysis))
        places = (owner,) if given is scope else (maker, owner)
        handed = {id(arg) for call in calls for arg in _arguments(call)}
        if calls and not _is_used(spelled, places, handed):
            yield spelled, ast.unparse(calls[0].func)


def _node_of(function: Function, analysis: Analysis) -> ast.AST | None:
    nodes = function.module.nodes
    defs = (ast.FunctionDef, ast.AsyncFunctionDef)
    return next(
        (
            n
            for n in nodes
            if isinstance(n, defs) and n.name == function.name and _is_at(n, function)
        ),
        None,
    )


def _is_at(node: ast.FunctionDef | ast.AsyncFunctionDef, function: Function) -> bool:
    return node.lineno == function.line


def _kept_as(name: str, maker: ast.AST) -> str | None:
    """Return the attribute in which the parameter `name` is kept: `self.o` of `self.o = o`."""
    for node in ast.walk(maker):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            for one, other in pairs:
                kept = isinstance(one, ast.Attribute) and isinstance(other, ast.Name)
                if kept and getattr(other, "id", "") == name:
                    return ast.unparse(one)
    return None


def _handing(spelled: str, model: str, scope: Scope, analysis: Analysis) -> Iterator[ast.Call]:
    """Yield the calls in `scope` of what is not in the project that are given the model and `spelled`."""
    assert isinstance(scope, Function)
    for region in analysis.regions(scope.region):
        for call, at in region.calls:
            given = [ast.unparse(arg) for arg in _arguments(call)]
            if model not in given or spelled not in given or analysis.running[call].functions:
                continue
            values = analysis.evaluator.values(call.func, at)
            names = [value.name for value in values if isinstance(value, External)]
            if names and not any(name.startswith(OF_TORCH) for name in names):
                yield call


def _is_used(spelled: str, places: tuple[ast.AST, ...], handed: set[int]) -> bool:
    """Whether something else than handing it on is done with what is spelled so."""
    for place in places:
        for node in ast.walk(place):
            if not isinstance(node, ast.Name | ast.Attribute) or id(node) in handed:
                continue
            if isinstance(node.ctx, ast.Load) and ast.unparse(node) == spelled:
                return True
    return False


def loops_handing_on(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[int, str]]:
    """Yield the line of each loop that hands an optimizer to code outside of the project, and what to do.

    Nothing in the loop is seen to train: a library's function may run the whole step.
    """
    for scope in (top, *top.functions):
        for root in scope.roots:
            for region in analysis.regions(root):
                if region.loop is None or not _is_open(region, analysis):
                    continue
                call = _given_optimizer(region, analysis)
                where = programs_of(analysis).on_accelerator(scope, region)
                if call is not None and where is not False:
                    yield region.loop.lineno, HANDED_ON.format(ast.unparse(call.func))


def _is_open(loop: Region, analysis: Analysis) -> bool:
    """Whether nothing that is seen trains in a loop."""
    parts = list(analysis.regions(loop))
    if any(part in analysis.step_loops or part in analysis.captured for part in parts):
        return False
    training = programs_of(analysis).training
    return not any(
        analysis.effect(call) or not training.isdisjoint(analysis.running[call].functions)
        for part in parts
        for call, _ in part.calls
    )


def _given_optimizer(loop: Region, analysis: Analysis) -> ast.Call | None:
    """Return the call in a loop, not in an inner one, by which a library is given an optimizer."""
    for call, scope in loop.calls:
        if analysis.running[call].functions or not isinstance(call.func, ast.Name | ast.Attribute):
            continue
        last = getattr(call.func, "attr", "") or getattr(call.func, "id", "")
        if SAVE.fullmatch(last) or SCHEDULE.fullmatch(last) or KEEPS.fullmatch(last):
            continue
        values = analysis.evaluator.values(call.func, scope)
        names = [value.name for value in values if isinstance(value, External)]
        if not names or any(name.startswith(OF_TORCH) for name in names):
            continue
        for arg in _arguments(call):
            kinds = {
                is_optimizer_value(value, analysis.evaluator)
                for value in analysis.evaluator.values(arg, scope)
            }
            if True in kinds:
                return call
    return None


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]
