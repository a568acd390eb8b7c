"""The compiler's source as two files: the model's classes, and the loss of one batch."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from migrate.train.slice.text import first_line

STEP = "Step"


@dataclass(frozen=True)
class SplitSource:
    """Sources of both files.

    Attributes:
        model: `model.py`.
        loss: `loss.py`, without the function that takes a batch.
    """

    model: str
    loss: str


def split(modeling: str, script: str) -> SplitSource:
    """Split a port's source: what only the step reads is the loss.

    Args:
        modeling: `modeling.py` of the port.
        script: name of the script, for the docstrings.
    """
    tree = ast.parse(modeling)
    lines = modeling.splitlines()
    head: list[str] = []
    nodes: dict[str, ast.FunctionDef | ast.ClassDef | ast.Assign] = {}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            head.append(ast.unparse(node).replace("from .config", "from config"))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            nodes[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            nodes[node.targets[0].id] = node
    step = nodes[STEP]
    assert isinstance(step, ast.ClassDef)
    setup = [n for n in step.body if isinstance(n, ast.FunctionDef) and n.name == "setup"]
    named = _reach({n for part in (*step.bases, *setup) for n in _names(part)}, nodes)
    classes = {name for name in named if isinstance(nodes[name], ast.ClassDef)}
    model = _reach(classes, nodes) - {STEP}
    loss = [name for name in nodes if name not in model]

    def text(names: list[str]) -> str:
        parts = []
        for name in names:
            node = nodes[name]
            parts.append("\n".join(lines[first_line(node) - 1 : node.end_lineno]))
        return "\n\n\n".join(parts)

    shared = sorted(model & {n for name in loss for n in _names(nodes[name])})
    imports = "\n".join(head)
    imported = f"\nfrom model import {', '.join(shared)}" if shared else ""
    return SplitSource(
        f'"""The model of {script} in Flax."""\n\n{imports}\n\n\n'
        f"{text([name for name in nodes if name in model])}\n",
        f'"""The loss of {script}: what its training step computes of a batch."""\n\n'
        f"{imports}{imported}\n\n\n{text(loss)}\n",
    )


def _reach(start: set[str], nodes: Mapping[str, ast.stmt]) -> set[str]:
    reached: set[str] = set()
    queue = [name for name in start if name in nodes]
    while queue:
        name = queue.pop()
        if name not in reached:
            reached.add(name)
            queue += [inner for inner in _names(nodes[name]) if inner in nodes]
    return reached


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
