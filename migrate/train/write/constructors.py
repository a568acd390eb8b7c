"""Constructors of the script's module classes, and functions that change a model before the training."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from migrate.train.slice.text import ScriptText
from migrate.train.watch.calls import PLAIN
from migrate.train.watch.constructors import Built
from migrate.train.write.functions import absent, assigned, head, parameter_names

# Fields of every class of a program, which have defaults.
_CONFIG = "config"


def constructor_text(node: ast.ClassDef, built: Built | None, flax: ast.stmt | None) -> str:
    """A function with the parameters of a module's constructor; "" if it cannot make the Flax class.

    Args:
        node: the class of the script.
        built: how the script calls the constructor.
        flax: the class in `model.py`.
    """
    init = next((m for m in node.body if getattr(m, "name", "") == "__init__"), None)
    if built is None or not isinstance(init, ast.FunctionDef) or not isinstance(flax, ast.ClassDef):
        return ""
    names = parameter_names(init)
    if list(built.call.arguments) != names:
        return ""
    fields = [
        s.target.id
        for s in flax.body
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name) and s.value is None
    ]
    passed, used = [], set()
    for field in fields:
        if field == _CONFIG:
            passed.append(f"config={config_class(flax)}()")
            continue
        of = _ATTRIBUTES.get(field, field)
        source = next((name for name, sizes in built.sizes.items() if of in sizes), None)
        if source is None:
            return ""
        used.add(source)
        passed.append(f"{field}={source}.{of}")
    checks = ""
    for name, (kind, value) in built.call.arguments.items():
        if name in ("self", *used):
            continue
        checks += (
            f"    _require({name!r}, {name}, {value!r})\n" if kind == PLAIN else absent(init, name)
        )
    parameters = head(init).partition("(")[2].removeprefix("self").lstrip(", ")
    return (
        f"def {node.name}({parameters}\n"
        f'    """The module `{node.name}` in Flax, without weights."""\n'
        f"{checks}    return _model.{node.name}({', '.join(passed)})\n"
    )


def config_class(flax: ast.stmt | None) -> str:
    """Class of the sizes that a class of `model.py` reads; "" if it reads none."""
    return next(
        (
            ast.unparse(s.annotation)
            for s in getattr(flax, "body", ())
            if isinstance(s, ast.AnnAssign) and ast.unparse(s.target) == _CONFIG
        ),
        "",
    )


# Where Flax names a size otherwise than torch.
_ATTRIBUTES = {"features": "out_features"}


def changes_model(script: ScriptText, node: ast.FunctionDef, modules: Mapping[str, str]) -> str:
    """A function that changes a model, is called once before the training, and returns the model.

    Args:
        script: the script.
        node: the function.
        modules: class of each module of the step by its name.
    """
    names = parameter_names(node)
    returns = [
        ast.unparse(n.value) for n in ast.walk(node) if isinstance(n, ast.Return) and n.value
    ]
    if len(names) != 1 or returns != names:
        return ""
    calls = [
        n
        for n in ast.walk(script.tree)
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and ast.unparse(n.value.func) == node.name
    ]
    called = len(calls) == 1 and [ast.unparse(a) for a in calls[0].value.args]  # type: ignore[attr-defined]
    if called != [ast.unparse(t) for t in (calls[0].targets if calls else ())] or not called:
        return ""
    if called[0] not in modules:
        return ""
    return (
        f"{head(node)}\n"
        f'    """`{node.name}`: the program\'s model is as the script\'s is after it. Returns the state."""\n'
        f"    return {names[0]}\n"
    )


def makes_models(script: ScriptText, node: ast.FunctionDef, modules: Mapping[str, str]) -> str:
    """A function that makes modules of the step: the state with which the script starts, for each.

    Args:
        script: the script.
        node: the function.
        modules: class of each module of the step by its name.
    """
    counts = set()
    for statement in ast.walk(script.tree):
        if not isinstance(statement, ast.Assign):
            continue
        for target in statement.targets:
            for to, value in assigned(target, statement.value):
                if node.name not in _called_first(value):
                    continue
                names = to.elts if isinstance(to, ast.Tuple) else [to]
                if not all(isinstance(n, ast.Name) and n.id in modules for n in names):
                    return ""
                counts.add(len(names) if isinstance(to, ast.Tuple) else 0)
    if len(counts) != 1:
        return ""
    (count,) = counts
    states = ", ".join(["_fresh()"] * count) if count else "_fresh()"
    checks = "".join(absent(node, name) for name in parameter_names(node))
    what = "a state for each module" if count else "a state"
    return (
        f'{head(node)}\n    """`{node.name}`: {what}, with the weights that the script starts from."""\n'
        f"{checks}    return {states}\n"
    )


def _called_first(value: ast.expr) -> set[str]:
    """Name of the function at the root of `build(config).eval()`."""
    names: set[str] = set()
    node = value
    while isinstance(node, ast.Call | ast.Attribute):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names.add(node.func.id)
        node = node.func if isinstance(node, ast.Call) else node.value
    return names


__all__ = ["changes_model", "config_class", "constructor_text", "makes_models"]
