"""`data.py` with what its script needs alone: its batches are arrays, and nothing reads the command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from migrate.train.slice.data import MICRO
from migrate.train.slice.emit import RESTORE
from migrate.train.write.evaluation import with_evaluations
from migrate.train.write.logged import with_logged
from migrate.train.write.texts import restore_text

# Names that `data.py` has beside those of its script.
_OWN = ("batches", "micro", "np", "jax", "Path", "sys", "FOLDER")


def plain_data_text(
    source: str,
    script: str,
    folder: str,
    batches: Sequence[Any],
    at: Path,
    *,
    on_gpu: bool = False,
    evaluations: Sequence[Mapping[str, Any]] = (),
    logged: Sequence[str] = (),
    states: int = 0,
) -> str:
    """`data.py` of a loop that gives arrays in one function; "" for another one.

    Whether it gives the script's batches has to be seen: it has no command line of its own.

    Args:
        source: the loop, without the head of `data.py`.
        script: name of the script.
        folder: expression of the script's folder.
        batches: recorded micro-batches.
        at: the script's folder.
        on_gpu: whether it trains on a GPU.
        evaluations: the script's evaluations, whose values the loop asks for.
        logged: values of an update that log lines of the loop read.
        states: number of recorded states of the random generators; 0: they are not restored.
    """
    tree = ast.parse(source)
    words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if {*_OWN, "Ended", "command_line"} & words - {"np", "jax"} or "__file__" in words:
        return ""
    nested = [isinstance(value, dict | list) for batch in batches for value in batch.values()]
    if not batches or not all(_are_arrays(batch) for batch in batches):
        return ""
    generator = _generator(tree, source, nested=any(nested))
    if not generator:
        return ""
    if evaluations:
        generator = with_evaluations(generator, evaluations)
    generator = with_logged(generator, logged)
    restore = ""
    if states:
        once = states == 1 and _is_called_once(tree)
        torch_alone = _draws_from_torch_alone(tree)
        restore = restore_text(script, once=once, torch_alone=torch_alone)
    imports = [
        *(["import jax"] if any(nested) else []),
        "import numpy as np",
        *(["import math", "import torch"] if evaluations else []),
        *(["import torch"] if logged else []),
        *(["import torch.distributed"] if re.search(r"\btorch\.distributed\b", source) else []),
    ]
    path = ""
    standard = []
    if restore:
        used = [name for name in ("itertools", "json", "random") if f"{name}." in restore]
        standard = [
            *(f"import {name}" for name in used),
            "from pathlib import Path",
            "import torch",
        ]
    if _has_modules(tree, at):
        standard = ["import sys", *standard, "from pathlib import Path"]
        path = f"\n\nsys.path.append(str({folder}))  # the folder of {script}, with its modules"
    if on_gpu:
        imports.append("from shims import patches")
        path += f"\n\n# {script} trains on a GPU. Here its tensors stay in the memory of the host."
        path += '\npatches.install("cpu", 1)'
    head = f'"""The batches of {script}: its own loop, without what trains."""\n\n'
    imports = [*standard, "", *imports] if standard else imports
    return f"{head}{chr(10).join(imports)}{path}{restore and chr(10)}{restore}\n\n{generator}\n"


def _is_called_once(tree: ast.Module) -> bool:
    """Whether the generators are restored at one place, outside of loops."""
    micro = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == MICRO)
    own = [statement for statement in micro.body if ast.unparse(statement) == f"{RESTORE}()"]
    return len(own) == 1


def _draws_from_torch_alone(tree: ast.Module) -> bool:
    """Whether the source imports nothing but torch."""
    return all(
        name.partition(".")[0] in ("torch", "math", "argparse")
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
    )


def has_single_batches(text: str) -> bool:
    """Whether each update of a text of `plain_data_text` has one micro-batch, in every run."""
    return "micro.append(" not in text and "yield micro" not in text


def _are_arrays(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_are_arrays, value.values()))
    if isinstance(value, list):
        return all(map(_are_arrays, value))
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _has_modules(tree: ast.Module, folder: Path) -> bool:
    """Whether a statement imports a module of a folder."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return any((folder / name).is_dir() or (folder / f"{name}.py").is_file() for name in names)


def _generator(tree: ast.Module, source: str, *, nested: bool) -> str:
    """The source, whose generator yields the micro-batches of each update; "" if it has other yields."""
    yields = [n for n in ast.walk(tree) if isinstance(n, ast.Yield)]
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    places = {
        id(block[n].value): (function, block, n)  # type: ignore[attr-defined]
        for function in functions
        for block in _blocks(function)
        for n in range(len(block))
        if isinstance(block[n], ast.Expr)
    }
    # Generators of the script yield other things.
    batch = [n for n in yields if isinstance(n.value, ast.Dict)]
    update = [n for n in yields if ast.unparse(n) in ("(yield None)", "(yield)")]
    if len(batch) != 1 or len(update) != 1 or {id(batch[0]), id(update[0])} - {*places}:
        return ""
    values = batch[0].value
    assert isinstance(values, ast.Dict)
    asarray = ast.Name("np.asarray")
    each: list[ast.expr] = [ast.Call(asarray, [value], []) for value in values.values]
    arrays = ast.unparse(ast.Dict(values.keys, each))
    if nested:
        arrays = f"jax.tree.map(np.asarray, {ast.unparse(values)})"
    lines = source.splitlines()

    def put(node: ast.expr, *texts: str) -> None:
        indent = " " * node.col_offset
        lines[node.lineno - 1 : node.end_lineno] = [f"{indent}{text}" for text in texts]

    (function, block, number), (of_update, other, after) = (
        places[id(batch[0])],
        places[id(update[0])],
    )
    if other is block and after == number + 1:
        put(update[0])
        put(batch[0], f"yield [{arrays}]")
    elif function is of_update and function.name == MICRO:
        both = [
            (batch[0], (f"micro.append({arrays})",)),
            (update[0], ("yield micro", "micro = []")),
        ]
        for node, texts in sorted(both, key=lambda pair: -pair[0].lineno):
            put(node, *texts)
        last = function.body[-1]
        lines.insert(last.lineno - 1, f"{' ' * last.col_offset}micro = []")
    else:  # what one call leaves over belongs to the first update of the next
        return ""
    first = lines.index(f"def {MICRO}():")
    lines[first : first + 2] = [
        "def batches():",
        '    """Yield the micro-batches of each update of the weights."""',
    ]
    return "\n".join(lines)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Blocks of statements in a function, without those of functions in it."""
    for field in ("body", "orelse", "finalbody", "handlers"):
        block = getattr(node, field, [])
        if isinstance(block, list) and block:
            if isinstance(block[0], ast.stmt):
                yield block
            for child in block:
                if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from _blocks(child)
