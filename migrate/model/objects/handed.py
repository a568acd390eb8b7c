"""Parameters passed with the model to code outside of the project: possibly optimizers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from migrate.catalogue.words import LOADER, MODEL, NO_OPTIMIZER
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.scopes import Function, Scope
from migrate.model.objects.unfollowed import arguments, is_outside
from migrate.syntax.walk_ast import walk


def handed_with(
    model: str, function: Function, scope: Function, analysis: Analysis
) -> Iterator[tuple[str, str]]:
    """Yield the parameters passed with a model to unknown code, with that code.

    Args:
        model: how `scope` spells the model: `net`, `self.net`.
        function: the function with the parameters: `scope`, or the one that makes an instance of its class.
        scope: the function that moves the model.
        analysis: of the project.
    """
    owner = next(iter(scope.definitions), None)
    maker = next(iter(function.definitions), None)
    if owner is None or maker is None:
        return
    for name in function.parameters:
        default, annotations = function.declared.get(name, (None, []))
        plain = default is None and not annotations and name not in ("self", "cls")
        if not plain or any(word.fullmatch(name) for word in (NO_OPTIMIZER, LOADER, MODEL)):
            continue
        spelled = name if function is scope else _kept_as(name, maker)
        if spelled is None or spelled == model:
            continue
        calls = list(_handing(spelled, model, scope, analysis))
        places = (owner,) if function is scope else (maker, owner)
        handed = {id(arg) for call in calls for arg in arguments(call)}
        if calls and not _is_used(spelled, places, handed):
            yield spelled, ast.unparse(calls[0].func)


def _kept_as(name: str, maker: ast.AST) -> str | None:
    """Return the attribute that keeps the parameter `name`: `self.o` of `self.o = o`."""
    for node in walk(maker):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            for first, other in pairs:
                kept = isinstance(first, ast.Attribute) and isinstance(other, ast.Name)
                if kept and getattr(other, "id", "") == name:
                    return ast.unparse(first)
    return None


def _handing(spelled: str, model: str, scope: Scope, analysis: Analysis) -> Iterator[ast.Call]:
    """Yield the calls in `scope` to code outside of the project with the model and `spelled` as arguments."""
    assert isinstance(scope, Function)
    for region in analysis.regions(scope.region):
        for call, at in region.calls:
            texts = [ast.unparse(arg) for arg in arguments(call)]
            if model not in texts or spelled not in texts:
                continue
            if is_outside(call, at, analysis):
                yield call


def _is_used(spelled: str, places: tuple[ast.AST, ...], handed: set[int]) -> bool:
    """Whether the expression spelled so has a use other than being passed on."""
    for place in places:
        for node in walk(place):
            if not isinstance(node, ast.Name | ast.Attribute) or id(node) in handed:
                continue
            if isinstance(node.ctx, ast.Load) and ast.unparse(node) == spelled:
                return True
    return False
