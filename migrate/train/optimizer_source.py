"""The optimizer of a program: its source, for the arrays of the program."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from migrate.model.calls.rank_tests import last_part
from migrate.port.weights import PARAMS
from migrate.train.optimizer.recorded import ParameterArray
from migrate.train.optimizer.write import write_optimizer
from migrate.train.slice.rate import is_rate
from migrate.train.slice.text import ScriptText, returns_built


def optimizer_source(
    script: ScriptText, recorded: Mapping[str, Any], weights: Any, work: Path
) -> Any:
    """Source of the optimizer, for the arrays of the program."""
    from safetensors.numpy import load_file

    optimizer = recorded["optimizer"]
    source = _constructor(script, optimizer.line, optimizer.name.rpartition(".")[2])
    count = len(optimizer.rates) if recorded.get("ended") else None
    assigned = [
        node.lineno
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Assign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if is_rate(target)
    ]
    file, line = script.position(optimizer.line) if optimizer.line else (script.name, 0)
    optimizer = replace(
        optimizer,
        file=file,
        line=line,
        source=source,
        updates=count,
        sets_rate=min(assigned, default=0),
        option_names=_names_in_groups(script),
        builder=builder_name(script, recorded.get("builder"), optimizer.line),
        clips=tuple(
            replace(clip, limit_name=_limit_name(script, clip.line)) for clip in optimizer.clips
        ),
    )
    names: dict[str, list[str]] = {}
    for name, paths in weights.paths.items():
        if name not in recorded["tied"] and name in recorded["gradients"]:
            for path in paths:
                names.setdefault(path, []).append(name)
    shapes = {path: array.shape for path, array in load_file(work / "weights" / PARAMS).items()}
    tensors = {name: tuple(tensor.shape) for name, tensor in recorded["state"].items()}

    def whole(path: str, of: Sequence[str]) -> bool:
        shape = tuple(shapes[path])
        return len(of) == 1 and len(shape) <= 2 and tensors[of[0]] in (shape, shape[::-1])

    arrays = [
        ParameterArray(tuple(path.split("/")[1:]), len(shapes[path]), tuple(of), whole(path, of))
        for path, of in names.items()
        if path.startswith("params/")
    ]
    return write_optimizer(optimizer, arrays)


def builder_name(script: ScriptText, call: Any, line: int) -> str:
    """Name of the function of the script that builds the optimizer and returns nothing else; "" for none.

    Args:
        script: the script.
        call: the call that ran when the optimizer was built; None outside of functions.
        line: line that builds it.
    """
    if call is None:
        return ""
    ran = [
        node
        for node in script.tree.body
        if isinstance(node, ast.FunctionDef)
        and not node.decorator_list
        and (node.lineno, node.name) == (call.first, call.function)
    ]
    return next((node.name for node in ran if returns_built(node, line)), "")


def _names_in_groups(script: ScriptText) -> dict[str, str]:
    """Names of options in groups of parameters, `{"weight_decay": weight_decay}`."""
    return {
        key.value: name
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value in ("weight_decay", "momentum", "eps")
        if (name := last_part(value))
    }


def _limit_name(script: ScriptText, line: int) -> str:
    """Name of the limit in the script's call that clips gradients at a line; "" if it has none."""
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Call) or not last_part(node.func).startswith("clip_grad_"):
            continue
        if node.lineno <= line <= (node.end_lineno or 0):
            named = [k.value for k in node.keywords if k.arg in ("max_norm", "clip_value")]
            return next((last_part(value) for value in (*named, *node.args[1:2])), "")
    return ""


def _constructor(script: ScriptText, line: int, name: str) -> str:
    """Text of the call that builds the optimizer; "" if the script does not build it by its name."""
    code: ast.AST = script.tree
    for node in ast.walk(code):
        if not isinstance(node, ast.Call) or last_part(node.func) != name:
            continue
        if node.lineno <= line <= (node.end_lineno or 0):
            return ast.unparse(node)
    return ""
