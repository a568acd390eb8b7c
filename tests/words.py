"""Check that code keeps to the words of the guide: what a machine can tell of CONTRIBUTING.md, "Words".

    python tests/words.py [PATH…]

Prints one line for each offender, `path:line: what`; exit code 1 if there is one. Without a path: all
packages, and the messages that tests assert. `make lint` runs it.
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
# Layers named after torch's, once for each API of Flax and once in a plain form.
LIKE_TORCH = ROOT / "converters" / "modules"

# A docstring begins with a noun phrase or a verb: no preposition, pronoun or question word.
FIRST_WORDS = frozenset(
    (
        *("as", "at", "by", "for", "from", "given", "in", "none", "of", "on", "to", "with"),
        *("it", "its", "one", "that", "these", "this", "those"),
        *("how", "what", "when", "where", "which", "who", "whose", "why"),
    )
)
# Say the noun: `hazard`, `edit`, `layer`, `path`.
NAMES = frozenset({"found", "given", "made", "one", "told"})
# British spellings; a name in quotes may be one that users or files have.
BRITISH = re.compile(
    r"""(?<!["'])(?:labelled|colour|neighbour|centred|behaviour(?!al)|(?:general|initial|material|normal"""
    r"""|optim|quant|random|recogn|serial|special|summar|synchron|token)is(?:e[ds]?|ing|ations?)\b)""",
    re.IGNORECASE,
)
MOST_WORDS = 40
_SENTENCE = re.compile(r"(?<=[.:;!?])\s+|\n\s*\n")
# Tests assert what a message is made of (code, line, values): one test alone holds its wording.
TESTS = ROOT / "tests"
_MESSAGE = re.compile(r"message|finding|note|stderr|\bsaid\b|report")
# What a message takes from the script: code, a file, a number, a placeholder.
_VALUE = re.compile(r"`[^`]*`|\{[^}]*\}|\S*[^\w\s',;:()?-]\S*|\w*\d\w*")
WORDING = 4
# A part of a docstring that is no prose: code, an example, a table, a list of arguments.
_NO_PROSE = re.compile(r"^(\s{4,}.*|\s*[|>].*|\s*\S+:: ?.*)$", re.MULTILINE)

Offence = tuple[Path, int, str]


def main(arguments: Sequence[str]) -> int:
    """Print the offenders in the named paths, and return the exit code."""
    paths = [Path(name).resolve() for name in arguments] or [ROOT / name for name in PACKAGES]
    offences = sorted({*offences_in(paths), *(() if arguments else asserted_twice(TESTS))})
    for path, line, what in offences:
        sys.stdout.write(f"{path.relative_to(ROOT)}:{line}: {what}\n")
    return 1 if offences else 0


def offences_in(paths: Sequence[Path]) -> Iterator[Offence]:
    """Yield each offence in the Python files below `paths`."""
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    texts = {file: file.read_text() for file in sorted(files)}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    for file, tree in trees.items():
        for line, what in (*_docstrings(tree), *_variables(tree), *_british(texts[file])):
            yield file, line, what
    yield from _classes(trees)


def _british(text: str) -> Iterator[tuple[int, str]]:
    for line, words in enumerate(text.splitlines(), 1):
        if match := BRITISH.search(words):
            yield line, f"British spelling: {match[0]}"


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


def _classes(trees: dict[Path, ast.Module]) -> Iterator[Offence]:
    """Yield each class whose name another class of the same package has."""
    for package in PACKAGES:
        if not any(file.is_relative_to(ROOT / package) for file in trees):
            continue
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


def asserted_twice(folder: Path) -> Iterator[Offence]:
    """Yield each assertion about the wording of a message that a test before it asserts too."""
    first: dict[str, tuple[Path, int]] = {}
    for file in sorted(folder.rglob("test_*.py")):
        tree = ast.parse(file.read_text())
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for function in tree.body:
            if not isinstance(function, ast.FunctionDef):
                continue
            for line, text in _wordings(function, constants):
                for words in _runs(text):
                    where = first.setdefault(words, (file, function.lineno))
                    if where != (file, function.lineno):
                        other = f"{where[0].relative_to(ROOT)}:{where[1]}"
                        yield file, line, f'"{words}" is also asserted by {other}: assert values'


def _wordings(
    function: ast.FunctionDef, constants: dict[str, ast.expr]
) -> Iterator[tuple[int, str]]:
    """Yield each text that `function` compares with a message, with its line."""
    for node in ast.walk(function):
        match node:
            case ast.Compare(left=left, comparators=others):
                sides = [left, *others]
            case ast.Call(func=ast.Attribute(value, "startswith" | "endswith"), args=arguments):
                sides = [value, *arguments]
            case _:
                continue
        texts = [text for side in sides for text in _texts(side, constants) if list(_runs(text))]
        if texts and any(_MESSAGE.search(ast.unparse(side)) for side in sides):
            yield from ((node.lineno, text) for text in texts)


def _texts(node: ast.expr, constants: dict[str, ast.expr]) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in parts)
        case ast.Name(id=name) if name in constants:
            yield from _texts(constants[name], {})
        case ast.BinOp(left=left, right=right):
            yield from _texts(left, constants)
            yield from _texts(right, constants)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            for part in parts:
                yield from _texts(part, constants)
        case ast.Call(func=ast.Attribute(value, "format")):
            yield from _texts(value, constants)


def _runs(text: str) -> Iterator[str]:
    """Yield each run of `WORDING` words in a text, without the values in it."""
    for piece in _VALUE.split(text):
        words = re.findall(r"[\w']+", piece.lower())
        for start in range(len(words) - WORDING + 1):
            yield " ".join(words[start : start + WORDING])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
