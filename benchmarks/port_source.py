"""The source that `migrate port` writes for the models of docs/gallery, against the original's.

    python benchmarks/port_source.py [NAME…]

Of each model: its lines of code ÷ those of the original's classes that ran (both without docstrings, comments
and blank lines, and with the functions of ours that it brings along), these lines ÷ those of the classes and
of the functions of the original that came back in the port (masks, experts, attention), the longest function
or method in lines, and the share of its values (arguments and variables) that bear a name of the original's
files, or a numbered one of these. It reads docs/gallery, so it measures what is checked in, and runs each
original once.
Exit code 1 if a goal is missed: 0.7 × the lines, 90 % of the names.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.history import append  # noqa: E402
from benchmarks.zoo_models import gallery  # noqa: E402
from benchmarks.zoo_models.measured import code_lines, original_lines, ran  # noqa: E402

LINES, NAMES = 0.7, 0.9


def main(wanted: list[str]) -> int:
    rows, missed = [], []
    for name in wanted or list(gallery.PIECES):
        source = ROOT / "docs" / "gallery" / name / "modeling.py"
        if not source.exists() or importlib.util.find_spec(gallery.PIECES[name].needs) is None:
            print(f"{name}: passed over", file=sys.stderr)
            continue
        row = measured(name, source.read_text())
        rows.append(row)
        if row["lines"] / row["original"] > LINES or row["names"] < NAMES:
            missed.append(name)
    print("| model | lines | original | ratio | with functions | longest | names of the original |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        print(
            f"| {row['title']} | {row['lines']} | {row['original']} | "
            f"{row['lines'] / row['original']:.2f} | "
            f"{row['lines'] / (row['original'] + row['functions']):.2f} | "
            f"{row['longest']} | {row['names']:.0%} |",
            flush=True,
        )
    lines, original = (sum(row[key] for row in rows) for key in ("lines", "original"))
    for row in rows:
        append(
            "port-source",
            {
                "model": row["title"],
                "lines": row["lines"],
                "original": row["original"],
                "ratio": f"{row['lines'] / row['original']:.2f}",
                "with functions": f"{row['lines'] / (row['original'] + row['functions']):.2f}",
                "longest": row["longest"],
                "names of the original": f"{row['names']:.0%}",
            },
        )
    if not wanted:
        ratio = f"{lines / max(original, 1):.2f}"
        append(
            "port-source", {"model": "all", "lines": lines, "original": original, "ratio": ratio}
        )
    print(f"| all | {lines} | {original} | {lines / max(original, 1):.2f} | | | |")
    if missed:
        print(f"\nmissed: {', '.join(missed)}")
    return 1 if missed else 0


def measured(name: str, source: str) -> dict[str, Any]:
    """A row: the port's lines, the original's, the longest function, the share of names."""
    model, inputs = gallery.build(name)
    classes = ran(model, inputs)
    tree = ast.parse(source)
    known = set(_known(classes))
    values = [one for function in _functions(tree) for one in _values(function)]
    named = [one for one in values if one in known or re.sub(r"_\d+$|_$", "", one) in known]
    return {
        "title": gallery.PIECES[name].title,
        "lines": code_lines(source),
        "original": original_lines(classes),
        "functions": sum(_functions_back(tree, classes)),
        "longest": max(code_lines(ast.unparse(one)) for one in _functions(tree)),
        "names": len(named) / max(len(values), 1),
    }


def _functions_back(tree: ast.Module, classes: Any) -> Iterator[int]:
    """Lines of the original's functions that the port has, each once: `sdpa_mask_2` is `sdpa_mask` again."""
    own = [inspect.getsourcefile(cls) or "" for cls in classes]
    packages = {cls.__module__.partition(".")[0] for cls in classes} - {"torch"}
    others = [
        getattr(module, "__file__", None) or ""
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in packages
    ]
    wanted = {
        re.sub(r"_\d+$", "", one.name) for one in tree.body if isinstance(one, ast.FunctionDef)
    }
    for file in dict.fromkeys([*own, *others]):
        if not wanted or not file.endswith(".py") or "/torch/" in file:
            continue
        text = Path(file).read_text()
        if not any(f"def {name}(" in text or f"def _{name}(" in text for name in wanted):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name.lstrip("_") in wanted:
                wanted.discard(node.name.lstrip("_"))
                yield code_lines(textwrap.dedent(ast.get_source_segment(text, node) or ""))


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _values(function: ast.FunctionDef) -> Iterator[str]:
    """The arguments and variables of a function, each once."""
    given = [*function.args.args, *function.args.kwonlyargs]
    stored = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id != "_"
    }
    yield from stored | {one.arg for one in given if one.arg != "self"}


def _known(classes: Any) -> Iterator[str]:
    """The names in the files that the original's classes stand in, and in those of functions they import."""
    files = {inspect.getsourcefile(cls) for cls in classes}
    files |= {
        inspect.getsourcefile(one)
        for cls in classes
        for one in vars(inspect.getmodule(cls)).values()
        if inspect.isfunction(one)
    }
    for file in files - {None}:
        for node in ast.walk(ast.parse(Path(str(file)).read_text())):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.arg):
                yield node.arg
            elif isinstance(node, ast.Attribute):
                yield node.attr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
