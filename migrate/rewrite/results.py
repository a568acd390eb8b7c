"""Results of a rewrite: of a script or a notebook, of a file in a folder, of a folder."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from migrate.check.config import naming
from migrate.check.project_tests import is_test
from migrate.check.severity import Severity
from migrate.syntax.notebook.text import SUFFIX, Notebook
from migrate.syntax.origins import Message, Related
from migrate.syntax.source import Source, decoded

# Part of the message of an edit, if a text of the script says to start it otherwise.
START_WITH_PYTHON = "start it with python"


@dataclass(frozen=True)
class Note:
    """An edit or a finding, for the user.

    Args:
        line, column: the location in the original, both from 1.
        rule: name of the rule.
        message: what was done, or what remains to do by hand, a `Message`.
        cell: the cell of a notebook, from 1, all cells counted. `line` then is a line of the cell.
        severity: severity of a finding. `INFO` if the rewritten script works with the construct.
        withdrawn: whether the finding replaces an edit that is not made.
        is_hint: whether it costs little, or another finding covers it. Only `migrate check` shows it.
        own_code: code of the finding, if it is not the rule's.
        subject: name of the reported construct, with which its message begins. Empty if it is no name.
        wrong: for an edit, what happens on a TPU without it, and what to do. Empty if `message` says it.
        unedited: for an edit, severity of the unedited construct. None: that of its rule.
    """

    line: int
    column: int
    rule: str
    message: str
    cell: int | None = None
    severity: Severity = Severity.ERROR
    withdrawn: bool = False
    is_hint: bool = False
    own_code: str = ""
    subject: str = ""
    wrong: str = ""
    unedited: Severity | None = None

    def __post_init__(self) -> None:
        """Keep the lines that the texts name as data."""
        object.__setattr__(self, "message", Message.of(self.message))
        object.__setattr__(self, "wrong", Message.of(self.wrong))

    @property
    def related(self) -> tuple[Related, ...]:
        """The lines that the message names."""
        return Message.of(self.message).related

    @property
    def place(self) -> str:
        """The location, as shown after the name of the file."""
        if self.cell is None:
            return f"{self.line}:{self.column}"
        return f"cell {self.cell}:line {self.line}"


# The cell, of a notebook, and the line.
Line = tuple[int | None, int]


@dataclass(frozen=True)
class Comments:
    """The comments `# migrate: ignore[CODE]` of a script.

    Args:
        codes: the codes that a comment silences, by its cell in a notebook and its line. Empty: all codes.
        used: the locations of the comments that have silenced something.
    """

    codes: Mapping[Line, tuple[str, ...]] = field(default_factory=dict)
    used: frozenset[Line] = frozenset()

    def silence(self, code: str, line: Line) -> bool:
        """Whether a comment silences `code` on its line."""
        codes = self.codes.get(line)
        return codes is not None and (not codes or naming(codes, code) is not None)

    def moved(self, where: Callable[[int], Line]) -> Comments:
        """Return the comments of the joined cells of a notebook, each in its cell.

        Args:
            where: maps a line of the joined cells to its cell and the line in the cell.
        """
        codes = {where(line): silenced for (_, line), silenced in self.codes.items()}
        return Comments(codes, frozenset(where(line) for _, line in self.used))


NO_COMMENTS = Comments()


@dataclass(frozen=True)
class Rewrite:
    """A script or a notebook, and its rewrite.

    Args:
        source: the original.
        data: the rewritten content.
        edits, findings: what was done, and what remains to do by hand.
        elsewhere: other files whose functions its steps call, or which it imports and which name an
            accelerator or make batches. Nothing is reported about them.
        unread: why imported files could not be read. What they do is unknown.
        hints: further findings that cost little. `migrate check` shows them.
        comments: the comments that silence findings.
    """

    source: Source | Notebook
    data: bytes
    edits: tuple[Note, ...]
    findings: tuple[Note, ...]
    elsewhere: tuple[Path, ...] = ()
    unread: tuple[str, ...] = ()
    hints: tuple[Note, ...] = ()
    comments: Comments = NO_COMMENTS

    @property
    def path(self) -> Path:
        """Path of the original."""
        return self.source.path

    def fails(self, on: Severity = Severity.ERROR) -> bool:
        """Whether a finding has the severity `on` or a higher one."""
        return any(note.severity.reaches(on) for note in self.findings)

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return self.data != self.source.data

    def diff(self, to: Path) -> str:
        """Return the change as a unified diff. `to` is the name of the rewritten script."""
        return unified_diff(self.source.data, self.data, str(self.path), str(to), self.path)


def unified_diff(before: bytes, after: bytes, old: str, new: str, path: Path) -> str:
    """Return the patch between two contents of the script at `path`, named `old` and `new`."""
    lines = difflib.unified_diff(
        text_of(before, path).splitlines(keepends=True),
        text_of(after, path).splitlines(keepends=True),
        old,
        new,
    )
    no_newline = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else f"{line}{no_newline}" for line in lines)


def text_of(data: bytes, path: Path) -> str:
    """Return a script or a notebook as text, in the encoding that it declares."""
    return data.decode() if path.suffix == SUFFIX else decoded(data, path)


@dataclass(frozen=True)
class FileRewrite:
    """A Python file or notebook of a folder, or a configuration that names CUDA, and its rewrite.

    Args:
        name: its path in the folder.
        before, after: its content before and after.
        edits, findings: as in `Rewrite`.
        problem: why it could not be rewritten. It is then copied unchanged.
        hints, comments: as in `Rewrite`.
    """

    name: Path
    before: bytes
    after: bytes
    edits: tuple[Note, ...] = ()
    findings: tuple[Note, ...] = ()
    problem: str = ""
    hints: tuple[Note, ...] = ()
    comments: Comments = NO_COMMENTS

    @property
    def changed(self) -> bool:
        """Whether its content changes."""
        return self.before != self.after

    def diff(self) -> str:
        """Return the change as a unified diff, as git writes it."""
        return unified_diff(self.before, self.after, f"a/{self.name}", f"b/{self.name}", self.name)


@dataclass(frozen=True)
class FolderRewrite:
    """A folder and the rewrites of its Python files and notebooks.

    Args:
        folder: the folder.
        files: the Python files and notebooks that concern any rule, and configuration files that name
            CUDA, in the order of their names.
        untouched: the number of Python files that concern no rule.
        notebooks: all Jupyter notebooks, including those among `files`.
        left_to_do: (file, finding) for all findings, in the order in which to fix them.
    """

    folder: Path
    files: tuple[FileRewrite, ...]
    untouched: int
    notebooks: tuple[Path, ...]
    left_to_do: tuple[tuple[Path, Note], ...] = field(repr=False)

    @property
    def changed(self) -> tuple[FileRewrite, ...]:
        """The files whose content changes."""
        return tuple(file for file in self.files if file.changed)

    def diff(self) -> str:
        """Return all changes as one patch."""
        return "".join(file.diff() for file in self.changed)

    @property
    def scripts(self) -> int:
        """The number of Python files."""
        return self.untouched + sum(file.name.suffix == ".py" for file in self.files)

    @property
    def problems(self) -> tuple[FileRewrite, ...]:
        """The files that could not be rewritten."""
        return tuple(file for file in self.files if file.problem)

    @cached_property
    def in_tests(self) -> tuple[tuple[Path, Note], ...]:
        """The findings in the project's tests. Tests run on no TPU, so they do not affect the exit code."""
        return tuple(entry for entry in self.left_to_do if self._is_test(entry[0]))

    @cached_property
    def outside_tests(self) -> tuple[tuple[Path, Note], ...]:
        """The findings in all other files."""
        return tuple(entry for entry in self.left_to_do if not self._is_test(entry[0]))

    def _is_test(self, name: Path) -> bool:
        return is_test(self.folder / name, [self.folder])

    def fails(self, on: Severity = Severity.ERROR) -> bool:
        """Whether a finding outside tests has the severity `on` or a higher one."""
        return any(note.severity.reaches(on) for _, note in self.outside_tests)

    @cached_property
    def edits_by_rule(self) -> dict[str, int]:
        """The number of edits of each rule, the most frequent first."""
        return _counts(note for file in self.files for note in file.edits)

    @cached_property
    def findings_by_rule(self) -> dict[str, int]:
        """The number of findings of each rule outside tests, the most frequent first."""
        files = (file for file in self.files if not self._is_test(file.name))
        return _counts(note for file in files for note in file.findings)


def _counts(notes: Iterator[Note]) -> dict[str, int]:
    return dict(Counter(note.rule for note in notes).most_common())
