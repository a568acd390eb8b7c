"""Collectives in the loss of a script: it is recorded on one rank, where they change nothing."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from converters.graph.recording.one_rank import ONE_RANK
from migrate.model.calls.rank_tests import last_part
from migrate.model.processes.meetings import TENSORS
from migrate.train.slice.called import imported_as
from migrate.train.slice.text import FunctionNode, ScriptText

_MODULE = "torch.distributed"
# Functions of torch.distributed whose result is made of the tensors of several ranks.
_COLLECTIVES = {*TENSORS, "all_gather_object"}


def collective_notes(
    script: ScriptText, lines: Sequence[tuple[int, int]], notes: Sequence[str] = ()
) -> list[str]:
    """Return a note on the collectives that the loss calls, also in functions of the script.

    Args:
        script: the script.
        lines: first and last line of each statement of the loss.
        notes: those of the port of the loss: one on collectives that were recorded says it already.
    """
    if any(note.startswith(ONE_RANK) for note in notes):
        return []
    places = [
        node
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call) and any(first <= node.lineno <= last for first, last in lines)
    ]
    functions = [node for node in ast.walk(script.tree) if isinstance(node, FunctionNode)]
    classes = [node for node in ast.walk(script.tree) if isinstance(node, ast.ClassDef)]
    asked, reached = set[str](), set[str]()
    where_called: dict[str, str] = {}
    while places:
        call = places.pop()
        text, last = ast.unparse(call.func), last_part(call.func)
        if text not in asked:
            asked.add(text)
            for path in imported_as(script.tree, call.func):
                name = path.rpartition(".")[2]
                if path.startswith(f"{_MODULE}.") and name in _COLLECTIVES:
                    where_called.setdefault(name, script.at(call.lineno))
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
