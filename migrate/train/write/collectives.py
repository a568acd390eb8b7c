"""Collectives in the loss of a script: it is recorded on one rank, where they change nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from migrate.train.slice.text import FunctionNode, ScriptText

_MODULE = "torch.distributed"
# Functions of torch.distributed whose result is made of the tensors of several ranks.
_COLLECTIVES = frozenset(
    (
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "broadcast",
        "gather",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
    )
)


def collective_notes(script: ScriptText, lines: Sequence[tuple[int, int]]) -> list[str]:
    """Return a note on the collectives that the loss calls, also in functions of the script.

    Args:
        script: the script.
        lines: first and last line of each statement of the loss.
    """
    places = [
        node
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call) and any(first <= node.lineno <= last for first, last in lines)
    ]
    functions = [node for node in ast.walk(script.tree) if isinstance(node, FunctionNode)]
    classes = [node for node in ast.walk(script.tree) if isinstance(node, ast.ClassDef)]
    reached: set[str] = set()
    where_called: dict[str, str] = {}
    modules = dict(_imported(script.tree))
    while places:
        call = places.pop()
        name = _qualified(call.func, modules)
        if name.startswith(f"{_MODULE}.") and name.rpartition(".")[2] in _COLLECTIVES:
            where_called.setdefault(name.rpartition(".")[2], script.at(call.lineno))
        last = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if last in reached:
            continue
        reached.add(last)
        # A class that is called or applied runs its methods: an autograd function, a module.
        owner = {c.name for c in classes} & {
            last,
            getattr(getattr(call.func, "value", None), "id", ""),
        }
        for node in (*functions, *classes):
            if node.name == last or node.name in owner:
                places += [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    if not where_called:
        return []
    names = ", ".join(f"{name} ({where})" for name, where in sorted(where_called.items()))
    return [
        f"the loss calls {names}, and was recorded on one rank, where that changes nothing. The program's "
        "loss is that of the whole batch on all devices, with all of its gradients: compare it with what the "
        "script computes on several ranks"
    ]


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each imported name with what it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)


def _qualified(node: ast.expr, modules: Mapping[str, str]) -> str:
    """Dotted name of a function, with aliases resolved; "" if it is no name of a module."""
    if isinstance(node, ast.Name):
        return modules.get(node.id, "")
    if isinstance(node, ast.Attribute) and (above := _qualified(node.value, modules)):
        return f"{above}.{node.attr}"
    return ""
