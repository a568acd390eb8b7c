"""The script's names of its schedule and of the parameters that decay, in `optimizer.py`."""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from dataclasses import replace

from migrate.model.calls.rank_tests import last_part
from migrate.train.optimizer.recorded import RecordedOptimizer
from migrate.train.optimizer.write import WrittenOptimizer
from migrate.train.slice.text import FunctionNode, ScriptText


def with_script_names(
    optimizer: WrittenOptimizer, script: ScriptText, recorded: RecordedOptimizer
) -> WrittenOptimizer:
    """Return the optimizer, whose functions have the names of the script's objects."""
    taken = {n.name for n in ast.walk(script.tree) if isinstance(n, FunctionNode | ast.ClassDef)}
    for old, names in (
        ("schedule", _of_schedule(script, recorded)),
        ("decays", _of_decayed(script)),
    ):
        name = names.pop() if len(names) == 1 else ""
        known = name in taken or keyword.iskeyword(name)
        if not name or known or _renamed(optimizer.source, name, "") != optimizer.source:
            continue
        rates = tuple(_renamed(rate, old, name) for rate in optimizer.rates.rates)
        optimizer = replace(
            optimizer,
            source=_renamed(optimizer.source, old, name),
            rates=replace(optimizer.rates, rates=rates),
        )
    return optimizer


def _of_schedule(script: ScriptText, recorded: RecordedOptimizer) -> set[str]:
    """Names to which the script assigns its one schedule."""
    if len(recorded.schedules) != 1:
        return set()
    line = recorded.schedules[0].line
    return {
        last_part(node.targets[0])
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Assign) and node.lineno <= line <= (node.end_lineno or 0)
    }


def _of_decayed(script: ScriptText) -> set[str]:
    """Names of the parameters in groups with weight decay, `{"params": decay, "weight_decay": 0.1}`."""
    names = set()
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Dict):
            continue
        entries = {
            key.value: value
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        }
        params, decay = entries.get("params"), entries.get("weight_decay")
        if isinstance(params, ast.Name) and decay is not None and ast.unparse(decay) not in _NONE:
            names.add(params.id)
    return names


_NONE = ("0", "0.0")


def _renamed(source: str, old: str, new: str) -> str:
    """The source with another name of a variable; text and attributes stay."""
    lines = source.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    matches = [
        token
        for before, token in zip([None, *tokens], tokens, strict=False)
        if token.type == tokenize.NAME
        and token.string == old
        and not (before and before.string == ".")
    ]
    for token in reversed(matches):
        (row, start), (_, end) = token.start, token.end
        lines[row - 1] = f"{lines[row - 1][:start]}{new}{lines[row - 1][end:]}"
    return "".join(lines)
