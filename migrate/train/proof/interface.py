"""Stage "interface": the program's functions by the script's names and layouts."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from migrate import process
from migrate.train.proof.program import RECORD, child
from migrate.train.results import NAMES, TrainComparison
from migrate.train.slice.text import FunctionNode, ScriptText
from migrate.train.write.functions import parameter_names
from migrate.train.write.interface import Interface
from migrate.train.write.public import EXPERIENCE, OWN, ROLLOUT


def names_compared(script: ScriptText, interface: str) -> tuple[TrainComparison, ...]:
    """Compare the script's public names with what `interface.py` has under them.

    A function that every `interface.py` has gets no parameters of the script's, so the script's gives way. A
    class whose constructor does not take the model over takes a state instead.

    Args:
        script: the script.
        interface: text of `interface.py`.

    Returns:
        The comparison; nothing where no name has two meanings.
    """
    public = {n.name: n for n in script.tree.body if isinstance(n, FunctionNode | ast.ClassDef)}
    heads = []
    for node in ast.parse(interface).body:
        if isinstance(node, ast.FunctionDef) and node.name in {*OWN, EXPERIENCE, ROLLOUT}:
            other = public.get(node.name)
            ported = isinstance(other, ast.FunctionDef) and (
                parameter_names(other) == parameter_names(node)
            )
            if other and (node.name in OWN or not ported):
                heads.append(f"{node.name}({', '.join(parameter_names(node))})")
        elif isinstance(node, ast.ClassDef) and node.name in public:
            own, theirs = (_constructor(known) for known in (node, public[node.name]))
            if own != theirs and own == ["state"]:
                heads.append(f"{node.name}(state)")
    what = f"interface.py has {', '.join(heads)}, and not the script's own of this name"
    return (TrainComparison(NAMES, True, what=what),) if heads else ()


def _constructor(node: ast.AST) -> list[str]:
    """Parameters of a class's own constructor."""
    members = node.body if isinstance(node, ast.ClassDef) else []
    init = next((m for m in members if getattr(m, "name", "") == "__init__"), None)
    return parameter_names(init)[1:] if isinstance(init, ast.FunctionDef) else []


def search_compared(interface: Interface) -> tuple[TrainComparison, ...]:
    """A difference where the program failed when the outputs of the script's model were looked for in it."""
    what = f"interface.py has no outputs: {interface.failed}"
    return (TrainComparison("interface", False, what=what),) if interface.failed else ()


def interface_comparisons(
    folder: Path, script: ScriptText, recorded: Mapping[str, Any], work: Path, timeout: float
) -> Iterator[TrainComparison]:
    """Yield what `interface.py` gives, beside the script's own weights, outputs and gradients.

    Args:
        folder: folder of the program; without `interface.py` nothing is compared.
        script: the script.
        recorded: the recorded run.
        work: folder with the record.
        timeout: seconds.
    """
    if not (folder / "interface.py").is_file():
        return
    yield from names_compared(script, (folder / "interface.py").read_text())
    output = work / "interface.json"
    output.unlink(missing_ok=True)
    paths = (folder, work / RECORD, output)
    code, said = child("migrate.train.proof.interface_child", paths, timeout)
    if code != 0 or not output.exists():
        what = f"interface.py does not run: {process.last_line(said)[:200]}"
        yield TrainComparison("interface", False, what=what)
        return
    for name, entry in json.loads(output.read_text()).items():
        worst = entry["worst"] if entry["worst"] is None else float(entry["worst"])
        same = bool(entry["same"])
        yield TrainComparison(name, same, worst, entry["limit"], entry["what"])
