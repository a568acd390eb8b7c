"""Constructors of the script's module classes, and functions that change a model before the training."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from migrate.train.slice.text import ScriptText
from migrate.train.watch.calls import MODULE, PLAIN
from migrate.train.watch.constructors import Built
from migrate.train.write.functions import absent, head, parameter_names

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
            passed.append("config=StepConfig()")
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


__all__ = ["MODULE", "changes_model", "constructor_text"]
