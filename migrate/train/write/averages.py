"""The script's class of a moving average of the weights, over states."""

from __future__ import annotations

import ast

from migrate.train.slice.text import ScriptText, first_line, loads
from migrate.train.watch.averages import RecordedAverage
from migrate.train.write.functions import head, parameter_names


def average_class(node: ast.ClassDef, average: RecordedAverage | None) -> str:
    """A class whose objects hold the average as the script's do; "" if it is another class.

    Its constructor takes the model, and numbers that the objects keep under the names of the parameters.
    """
    init = next((m for m in node.body if getattr(m, "name", "") == "__init__"), None)
    if average is None or average.owner is None or average.owner[0] != node.name:
        return ""
    if not isinstance(init, ast.FunctionDef):
        return ""
    attribute, plain = average.name.rpartition(".")[2], average.owner[1]
    of_object, *parameters = parameter_names(init)
    models = [name for name in parameters if name not in plain]
    updates = [
        member
        for member in node.body
        if isinstance(member, ast.FunctionDef)
        and member is not init
        and len(parameter_names(member)) == 2
        and _names_attribute(member, attribute)
    ]
    if len(models) != 1 or len(updates) != 1:
        return ""
    (update,), model = updates, models[0]
    own, new = parameter_names(update)
    held = [name for name in parameters if name in plain]
    checks = "".join(f"        _require({name!r}, {name}, {plain[name]!r})\n" for name in held)
    kept = "".join(f"        {of_object}.{name} = {name}\n" for name in held)
    return (
        f"class {node.name}:\n"
        f'    """Moving average of the weights; `{model}` and `{attribute}` are states."""\n\n'
        f"    {head(init)}\n{checks}{kept}"
        f"        {of_object}.{attribute}, {of_object}._updates = {model}, 0\n\n"
        f"    {head(update)}\n"
        f'        """Move the average to the weights of `{new}`, after an update."""\n'
        f"        average = _train.averaged({own}.{attribute}.params, {new}.params, {own}._updates)\n"
        f"        {own}.{attribute} = {own}.{attribute}._replace(params=average)\n"
        f"        {own}._updates += 1\n"
    )


def average_lines(script: ScriptText, average: RecordedAverage | None) -> set[int]:
    """Lines of statements that move the average and do nothing else.

    What reads another object, such as a log, stays to be done by hand.
    """
    if average is None:
        return set()
    return {
        first_line(node)
        for node in ast.walk(script.tree)
        if isinstance(node, ast.stmt)
        and not loads(node) & average.lines.get(first_line(node), frozenset())
        and first_line(node) in average.lines
    }


def _names_attribute(method: ast.FunctionDef, attribute: str) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == attribute for n in ast.walk(method))
