"""Refusals of scripts by their source alone, before they run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from converters.errors import OptimizerError
from converters.optimizer.classes import require_class
from migrate.train.errors import TrainError
from migrate.train.find import shared_lines
from migrate.train.optimizer.recorded import RecordedOptimizer, RecordedSchedule
from migrate.train.optimizer.replay import PLATEAU, SCHEDULERS, refused_schedule
from migrate.train.slice.called import only_imported_as
from migrate.train.slice.text import FunctionNode, ScriptText, shared_line

_OPTIMIZERS = "torch.optim"
# Packages whose own backwards are no training of a script.
_TORCH = ("torch", "torchvision", "torchaudio", "torch_xla", "numpy")
# Blocks that run whenever the statement does.
_ALWAYS = ast.With | ast.AsyncWith


def require_writable(script: ScriptText) -> None:
    """Require a script whose source alone does not show that it cannot be a program.

    What a condition, a loop or an argument decides is seen when the script runs.

    Raises:
        TrainError: it builds a schedule or an optimizer without a counterpart, its backward shares a line
            with another statement, or nothing in its folder calls a backward.
    """
    _require_backward(script)
    for call in certain_calls(script.tree):
        refusal = _refusal(script, call)
        if refusal is not None:
            raise refusal


def certain_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield calls that the script makes whatever its arguments are, in the order of the statements.

    Those of functions that it calls so are among them, up to the first statement that may leave a function.
    """
    functions = {node.name: node for node in tree.body if isinstance(node, FunctionNode)}
    names = [
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]
    for name in names:
        functions.pop(name, None)
    yield from _calls(tree.body, functions, set())


def _calls(
    block: Sequence[ast.stmt], functions: Mapping[str, ast.stmt], seen: set[str]
) -> Iterator[ast.Call]:
    for statement in block:
        if isinstance(statement, FunctionNode | ast.ClassDef):
            continue
        is_main = isinstance(statement, ast.If) and ast.unparse(statement.test) in (
            "__name__ == '__main__'",
            "'__main__' == __name__",
        )
        simple = not hasattr(statement, "body")
        heads: list[ast.AST] = [statement] if simple else []
        if isinstance(statement, _ALWAYS):
            heads = [item.context_expr for item in statement.items]
        elif isinstance(statement, ast.For | ast.AsyncFor):
            heads = [statement.iter]
        for head in heads:
            for call in _certain(head):
                yield call
                name = call.func.id if isinstance(call.func, ast.Name) else ""
                called = functions.get(name)
                if isinstance(called, ast.FunctionDef) and name not in seen and _runs(called):
                    yield from _calls(called.body, functions, {*seen, name})
        if is_main or isinstance(statement, _ALWAYS):
            yield from _calls(statement.body, functions, seen)  # type: ignore[attr-defined]
        if any(isinstance(n, ast.Return | ast.Raise) or _exits(n) for n in ast.walk(statement)):
            return


def _runs(function: ast.FunctionDef) -> bool:
    """Whether a call of a function runs its statements: it is no generator, and nothing wraps it."""
    yields = any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(function))
    return not function.decorator_list and not yields


def _exits(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in (
        "sys.exit",
        "exit",
        "quit",
        "os._exit",
    )


def _certain(node: ast.AST) -> Iterator[ast.Call]:
    """Yield calls of an expression that it makes whatever the values are, inner ones first."""
    if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return
    children: list[ast.AST] = [*ast.iter_child_nodes(node)]
    if isinstance(node, ast.IfExp):
        children = [node.test]
    elif isinstance(node, ast.BoolOp):
        children = [node.values[0]]
    for child in children:
        yield from _certain(child)
    if isinstance(node, ast.Call):
        yield node


def _refusal(script: ScriptText, call: ast.Call) -> TrainError | None:
    """The error for a call that builds what has no counterpart; None for others."""
    path = only_imported_as(script.tree, call.func)
    module, _, name = path.rpartition(".")
    file, line = script.position(call.lineno)
    if module in (SCHEDULERS, _OPTIMIZERS) and name == PLATEAU:
        item = RecordedSchedule(f"{SCHEDULERS}.{PLATEAU}", {}, line=line)
        return refused_schedule(item, RecordedOptimizer("", (), (), file=file))
    if module == _OPTIMIZERS and _is_optimizer(name):
        try:
            require_class(name)
        except OptimizerError as error:
            return TrainError(f"{file}:{line}: {error.what}", error.remedy)
    return None


def _is_optimizer(name: str) -> bool:
    import torch

    known = getattr(torch.optim, name, None)
    return isinstance(known, type) and issubclass(known, torch.optim.Optimizer)


def _require_backward(script: ScriptText) -> None:
    """Require the word `backward` in the script, in a module of its folder, or in one of a library's.

    If it stands in the script alone, statements of the loop around each call have lines of their own.
    """
    if any("backward" in text for text in _modules(script)):
        return
    if "backward" not in script.source:
        raise TrainError(
            f"{script.name}: its training is without a backward in this file, in modules of its folder and "
            "in those that it imports from",
            "name the script that has the training loop itself, with loss.backward() in it",
        )
    codes = [script.tree, *(n for n in ast.walk(script.tree) if isinstance(n, FunctionNode))]
    lines = []
    for node in ast.walk(script.tree):
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr == "backward":
            around = (code for code in codes if any(child is node for child in ast.walk(code)))
            inner = min(around, key=lambda code: sum(1 for _ in ast.walk(code)))
            lines.append(shared_line(inner, function.end_lineno or 0))
    if lines and all(lines):
        raise shared_lines(script, lines[0])


def _modules(script: ScriptText) -> Iterator[str]:
    """Texts of the modules of the script's folder that it may import; "backward" where that is unknown."""
    folder = Path(script.name).resolve().parent
    pending, seen = [script.source], set[Path]()
    while pending:
        source = pending.pop()
        if any(word in source for word in ("importlib", "__import__", "exec(", "runpy")):
            yield "backward"
            return
        try:
            nodes = [*ast.walk(ast.parse(source))]
        except SyntaxError:
            continue
        names = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
        names |= {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom) and not n.level}
        for name in sorted({name.partition(".")[0] for name in names} - {""}):
            place = folder / name
            files = [place.with_suffix(".py"), *(place.rglob("*.py") if place.is_dir() else ())]
            for file in files:
                if file.is_file() and file not in seen:
                    seen.add(file)
                    pending.append(file.read_text(encoding="utf-8", errors="replace"))
                    yield pending[-1]
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield from _of_library(node.module)


def _of_library(module: str) -> Iterator[str]:
    """Texts of an installed module that names are imported from: `timm.utils` has loss scalers."""
    top, *_ = parts = module.split(".")
    if top in sys.stdlib_module_names or top in _TORCH:
        return
    for entry in sys.path:
        place = Path(entry or ".").joinpath(*parts)
        for file in (place.with_suffix(".py"), *(place.glob("*.py") if place.is_dir() else ())):
            if file.is_file():
                yield file.read_text(encoding="utf-8", errors="replace")
