"""Whether a rewrite rests on what a script calls its own things: with other names it is rewritten alike.

python benchmarks/renaming.py PATH ... [--csv FILE]

Each Python file is rewritten as it is, and with the names that it binds itself replaced by v1, v2, …
Attributes, keywords and imported names stay, as other files may mean them. Where an edit is lost, another
finding must say so; where only a finding is lost, that is counted apart.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import csv
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import libcst as cst

from migrate.errors import MigrateError
from migrate.rewrite.left.codes import code_of
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

KEPT = frozenset({*dir(builtins), "self", "cls", "_", "__all__"})
# A rule or a code, and the line.
Place = tuple[str, int]


class Verdict(StrEnum):
    """What another set of names changes."""

    SAME = "same"
    MORE = "more edits"
    REPORTED = "an edit less, reported"
    SILENT = "an edit less, in silence"
    FINDING = "a finding less"


@dataclass(frozen=True)
class Compared:
    """A script, and what other names change.

    Args:
        verdict: the worst of the changes.
        lost: the edits, or where these are the same the findings, that are not there any more.
    """

    verdict: Verdict
    lost: tuple[Place, ...] = ()


def compare(text: str) -> Compared | None:
    """Return what other names change in the rewrite of a script; None where it binds no names of its own.

    Raises:
        MigrateError: the script cannot be read.
    """
    names = own_names(text)
    if not names:
        return None
    spelled = {name: f"v{number}" for number, name in enumerate(sorted(names), 1)}
    after = cst.parse_module(text).visit(_Renamed(spelled)).code
    edits, findings = _places(text)
    edits_after, findings_after = _places(after)
    lost, more = edits - edits_after, findings_after - findings
    if lost:
        verdict = Verdict.REPORTED if more else Verdict.SILENT
        return Compared(verdict, tuple(sorted(lost)))
    if edits_after - edits:
        return Compared(Verdict.MORE)
    if less := findings - findings_after:
        return Compared(Verdict.FINDING, tuple(sorted(less)))
    return Compared(Verdict.SAME)


def own_names(text: str) -> set[str]:
    """Return the names that a script binds and that nothing outside of it can mean."""
    bound: set[str] = set()
    fixed: set[str] = set(KEPT)
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                bound.add(name)
            case ast.ClassDef(name=name, body=body):
                bound.add(name)
                fixed.update(_members(body))
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                bound.add(name)
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                fixed.update((one.asname or one.name).split(".")[0] for one in aliases)
            case ast.keyword(arg=str(name)) | ast.Attribute(attr=name):
                fixed.add(name)
    return {name for name in bound - fixed if not name.startswith("__")}


def _members(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names of the methods and attributes of a class."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
        else:
            yield from (one.id for one in ast.walk(statement) if isinstance(one, ast.Name))


class _Renamed(cst.CSTTransformer):
    def __init__(self, spelled: Mapping[str, str]) -> None:
        self._spelled = spelled

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        return updated_node.with_changes(
            value=self._spelled.get(original_node.value, original_node.value)
        )

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_ImportAlias(
        self, original_node: cst.ImportAlias, updated_node: cst.ImportAlias
    ) -> cst.ImportAlias:
        return original_node


def _places(text: str) -> tuple[Counter[Place], Counter[Place]]:
    """Return the edits and the findings of a script that is in no project."""
    done = rewrite_source(parse(text.encode(), Path("/no/project/script.py")))
    edits = ((note.rule, note.line) for note in done.edits if note.rule != "comments")
    return Counter(edits), Counter((code_of(note), note.line) for note in done.findings)


def main() -> int:
    """Compare the scripts that the user names; return 1 where an edit is lost in silence."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    rows = []
    for path in asked.paths:
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            try:
                compared = compare(file.read_text())
            except (MigrateError, SyntaxError, UnicodeDecodeError):
                continue
            if compared is not None:
                lost = " ".join(f"{what}:{line}" for what, line in compared.lost)
                rows.append((str(file), compared.verdict.value, lost))
                if compared.verdict is not Verdict.SAME:
                    print(*rows[-1], sep=": ")
    for verdict, count in Counter(verdict for _, verdict, _ in rows).items():
        print(f"{count} of {len(rows)}: {verdict}")
    if asked.csv is not None:
        with asked.csv.open("w", newline="") as out:
            csv.writer(out).writerows([("file", "verdict", "lost"), *rows])
    return any(verdict == Verdict.SILENT for _, verdict, _ in rows)


if __name__ == "__main__":
    raise SystemExit(main())
