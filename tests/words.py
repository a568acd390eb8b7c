"""Check code for the rules of CONTRIBUTING.md, "Words", that a program can check.

    python tests/words.py [PATH…]

Prints one line per offense, `path:line: what`. The exit code is 1 if there is one. Without a path it
checks the packages in `HELD`. `make lint` runs it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("migrate", "converters", "shims")
# Packages that follow the guide.
HELD = (
    "shims",
    *(
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "converters").iterdir())
        if (path.suffix == ".py" or (path / "__init__.py").is_file()) and path.name != "graph"
    ),
)
# Layers named after torch's, once for each API of Flax and once in a plain form.
LIKE_TORCH = ROOT / "converters" / "modules"

# A docstring begins with a noun phrase or a verb, not with one of these words.
_FIRST_WORDS = """
    as at by for from given how in it its none of on one that these this those to what when where which who
    whose why with
"""
FIRST_WORDS = frozenset(_FIRST_WORDS.split())
# Use a noun instead: `hazard`, `edit`, `layer`, `path`.
NAMES = frozenset({"found", "given", "made", "one", "told"})
MOST_WORDS = 40
_SENTENCE = re.compile(r"(?<=[.:;!?])\s+|\n\s*\n")
# Parts of a docstring that are not prose: code, an example, a table, a list of arguments.
_NO_PROSE = re.compile(r"^(\s{4,}.*|\s*[|>].*|\s*\S+:: ?.*)$", re.MULTILINE)

Offense = tuple[Path, int, str]


def main(arguments: Sequence[str]) -> int:
    """Print the offenses in the named paths, and return the exit code."""
    paths = [Path(name).resolve() for name in arguments] or [ROOT / name for name in HELD]
    offenses = sorted(set(offenses_in(paths)))
    for path, line, what in offenses:
        print(f"{path.relative_to(ROOT)}:{line}: {what}")
    return 1 if offenses else 0


def offenses_in(paths: Sequence[Path]) -> Iterator[Offense]:
    """Yield each offense in the Python files below `paths`."""
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    trees = {file: ast.parse(file.read_text()) for file in sorted(files)}
    for file, tree in trees.items():
        for line, what in (*_docstrings(tree), *_variables(tree)):
            yield file, line, what
    yield from _classes(trees)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if not text:
            continue
        line = node.body[0].lineno
        first = re.match(r"\w+", text)
        if first and first[0].lower() in FIRST_WORDS:
            yield line, f'docstring begins with "{first[0]}": say what it is or does'
        for sentence in _SENTENCE.split(_NO_PROSE.sub("\n\n", text)):
            words = len(sentence.split())
            if words > MOST_WORDS:
                start = " ".join(sentence.split()[:6])
                yield line, f'sentence of {words} words ("{start} …"): at most {MOST_WORDS}'


def _variables(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in NAMES:
                yield node.lineno, f"variable `{name}`: name what it holds"


def _classes(trees: dict[Path, ast.Module]) -> Iterator[Offense]:
    """Yield each class that shares its name with another class of the package."""
    for package in PACKAGES:
        named: dict[str, list[tuple[Path, int]]] = defaultdict(list)
        for file in sorted((ROOT / package).rglob("*.py")):
            tree = trees.get(file) or ast.parse(file.read_text())
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    named[node.name].append((file, node.lineno))
        for name, places in named.items():
            for file, line in places:
                others = [
                    other
                    for other, _ in places
                    if other != file
                    and not (file.is_relative_to(LIKE_TORCH) and other.is_relative_to(LIKE_TORCH))
                ]
                if others and file in trees:
                    where = ", ".join(str(other.relative_to(ROOT)) for other in others)
                    yield file, line, f"class `{name}` is also in {where}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
