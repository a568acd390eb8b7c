"""Collect what `migrate check` reports: hazards, and constructs that `migrate rewrite` changes or leaves.

The rewrite runs without writing files. Its findings are reported as they are. A hazard that is missing from
its result is reported as fixable. So both commands agree.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path

from migrate.check.config import Config
from migrate.check.finding import UNREADABLE, UNUSED_IGNORE, Finding, Fix
from migrate.check.hazard import Severity
from migrate.check.project import Checked, Hazards, counted, hazards_of, python_files
from migrate.check.rules import all_hazards
from migrate.errors import MigrateError
from migrate.model.facts import AnalyzedProject
from migrate.progress import Progress, no_progress
from migrate.rewrite.file import rewrite_file
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.left.codes import code_of, is_at
from migrate.rewrite.left.remaining import NAME as REMAINING
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.results import FileRewrite, Note, Rewrite, text_of
from migrate.rewrite.rule import Safety
from migrate.rewrite.rules import all_rules, rules_by_name
from migrate.syntax.notebook.text import SUFFIX, NoCodeError, parse_notebook

# A folder with more files is not checked as a whole beside a script of it: that may take long.
MOST_FILES = 30
SAFETY = {Safety.SAFE: Fix.SAFE, Safety.UNSAFE: Fix.UNSAFE, Safety.REPORT_ONLY: Fix.NONE}


@dataclass(frozen=True)
class _Mended:
    """A file and its rewrite.

    Args:
        path, before, after: the file, its content, and its content after the rewrite.
        done: the rewrite of the file.
        changes: whether this file or another file of its folder changes.
    """

    path: Path
    before: bytes
    after: bytes
    done: FileRewrite | Rewrite
    changes: bool


@dataclass(frozen=True)
class _Refused:
    """A file or a folder that `migrate rewrite` does not rewrite, with the reason."""

    path: Path
    why: str

    @property
    def finding(self) -> Finding:
        """The finding that reports the refusal."""
        why = self.why.removeprefix(f"{self.path}:").strip()
        message = f"`migrate rewrite` refuses this: {why}"
        return Finding(self.path, 1, 1, 1, 2, UNREADABLE, "not-rewritten", Severity.ERROR, message)


def check_and_mend(
    paths: Sequence[Path], config: Config, progress: Progress = no_progress
) -> Checked:
    """Return the findings in files and folders. Those that `migrate rewrite` fixes are marked.

    Args:
        paths: the files and folders that the user named.
        config: the configuration, which selects findings.
        progress: receives the progress.

    Raises:
        UnreadableScriptError, NotUtf8Error, InvalidNotebookError: a path cannot be read.
    """
    hazards, findings, rewritten = _asked(paths, config, progress)
    checked = counted(hazards.files, findings, paths, config)
    checked = replace(checked, rewritten=rewritten)
    if not hazards.imported:
        return checked
    folder = _folder([*paths, *hazards.imported])
    if len(list(islice(python_files(folder, config), MOST_FILES + 1))) > MOST_FILES:
        return replace(checked, unread=len(hazards.imported), folder=folder)
    _, all_findings, _ = _asked([folder], config, no_progress)
    imported = {path.resolve() for path in hazards.imported}
    whole = [finding for finding in all_findings if finding.path.resolve() in imported]
    return replace(checked, beside=_more_errors(whole, findings), folder=folder)


def _folder(paths: Sequence[Path]) -> Path:
    """Return the folder around all paths, relative to the working directory if it is below."""
    folder = Path(os.path.commonpath([path.parent.resolve() for path in paths]))
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def _more_errors(whole: Iterable[Finding], reported: Iterable[Finding]) -> Mapping[Path, int]:
    """Return the number of errors among `whole` that are not `reported`, by file."""

    def at(finding: Finding) -> tuple[Path, int, int, str]:
        return finding.path.resolve(), finding.line, finding.column, finding.code

    known = set(map(at, reported))
    errors = (finding for finding in whole if finding.severity is Severity.ERROR)
    return Counter(finding.path for finding in errors if at(finding) not in known)


def findings_of(
    paths: Sequence[Path], config: Config, progress: Progress = no_progress
) -> tuple[int, list[Finding]]:
    """Return the number of checked files, and the findings in them.

    Raises:
        UnreadableScriptError, NotUtf8Error, InvalidNotebookError: a path cannot be read.
    """
    hazards, findings, _ = _asked(paths, config, progress)
    return hazards.files, findings


def _asked(
    paths: Sequence[Path], config: Config, progress: Progress
) -> tuple[Hazards, list[Finding], dict[Path, tuple[str, str]]]:
    """Return the hazards, the findings, and the text of changed files before and after."""
    hazards = hazards_of(paths, config, progress)
    rewritten: dict[Path, tuple[str, str]] = {}
    by_path = defaultdict(list)
    for hazard in hazards.findings:
        by_path[hazard.path].append(hazard)
    for mended in _rewritten(paths, config, progress, hazards.analyzed):
        findings = by_path[mended.path]
        if isinstance(mended, _Mended):
            if mended.after != mended.before:
                before = text_of(mended.before, mended.path)
                rewritten[mended.path] = before, text_of(mended.after, mended.path)
            by_path[mended.path] = list(_joined(mended, findings, config))
        elif config.selects(UNREADABLE) and all(finding.code != UNREADABLE for finding in findings):
            findings.append(mended.finding)
    return hazards, [finding for path in sorted(by_path) for finding in by_path[path]], rewritten


def _rewritten(
    paths: Iterable[Path], config: Config, progress: Progress, analyzed: Sequence[AnalyzedProject]
) -> Iterator[_Mended | _Refused]:
    """Yield each file that a rewrite of `paths` reads, and each path that it refuses.

    Args:
        paths, config, progress: as for `check_and_mend`.
        analyzed: the projects of `paths`, analyzed.
    """
    options = RewriteOptions(config=config)
    for path in paths:
        try:
            if not path.is_dir():
                done = rewrite_file(path, options, analyzed)
                yield _Mended(path, done.source.data, done.data, done, done.changed)
                continue
            folder = rewrite_folder(
                path, options=options, progress=_trying(progress), projects=analyzed
            )
            code = set(python_files(path, config))
            for file in folder.files:
                name = path / file.name
                if file.problem:
                    if not _is_text(file.before, name):
                        yield _Refused(name, file.problem)
                elif name in code or name.suffix not in (".py", SUFFIX):
                    yield _Mended(name, file.before, file.after, file, bool(folder.changed))
        except MigrateError as error:
            yield _Refused(path, str(error))


def _trying(progress: Progress) -> Progress:
    """Return the progress of a rewrite that writes nothing."""

    def told(what: str, done: int = 0, total: int = 0, unit: str = "file") -> None:
        words = {"rewriting": "looking for what a rewrite fixes"}
        progress(words.get(what, what), done, total, unit)

    return told


def _is_text(data: bytes, path: Path) -> bool:
    """Whether a file is a notebook without code. Nothing is reported for such a notebook."""
    try:
        if path.suffix == SUFFIX:
            parse_notebook(data, path)
    except NoCodeError:
        return True
    except MigrateError:
        pass
    return False


def _joined(mended: _Mended, hazards: Sequence[Finding], config: Config) -> Iterator[Finding]:
    """Yield the findings of a file: remaining findings, fixed hazards, and other changed constructs."""
    done = mended.done
    left = (*done.findings, *done.hints)
    place = _Places(mended)
    findings = [place.finding(note, note.severity) for note in left]
    gone = [hazard for hazard in hazards if not _is_said(hazard, left)]
    for hazard in gone:
        if hazard.code != UNUSED_IGNORE:
            findings.append(_fixed(hazard, done.edits) if mended.changes else hazard)
        elif (hazard.cell, hazard.line) not in done.comments.used:
            findings.append(hazard)
    covered = set(_covered(done.edits, gone))
    by_hazard = {(finding.cell, finding.line, finding.code) for finding in gone}
    # The first of several edits of one node for one reason.
    each = {
        (note.cell, note.line, note.column, code_of(note), note.subject): note
        for note in done.edits[::-1]
    }
    for note in reversed(each.values()):
        rule, code = rules_by_name().get(note.rule), code_of(note)
        if rule is None or (note.cell, note.line, code) in by_hazard or note in covered:
            continue
        if config.selects(code) and not done.comments.silence(code, (note.cell, note.line)):
            severity = config.severity(code, note.unedited or rule.edited)
            fix, condition = SAFETY[rule.safety], rule.condition
            findings.append(replace(place.finding(note, severity), fix=fix, condition=condition))
    yield from sorted(
        findings,
        key=lambda finding: (finding.cell or 0, finding.line, finding.column, finding.code),
    )


def _covered(edits: Sequence[Note], hazards: Sequence[Finding]) -> Iterator[Note]:
    """Yield the edits whose construct a hazard at another line reports: for each hazard, the nearest edit."""
    for hazard in hazards:
        nearest = [
            note
            for note in edits
            if (rule := rules_by_name().get(note.rule)) is not None
            and (rule.reported_as, note.cell) == (hazard.code, hazard.cell)
        ]
        if nearest:
            yield min(nearest, key=lambda note: abs(note.line - hazard.line))


class _Places:
    """Locations of a file's findings, in the form that editors expect."""

    def __init__(self, mended: _Mended) -> None:
        self._path = mended.path
        is_notebook = mended.path.suffix == SUFFIX
        self._notebook = parse_notebook(mended.before, mended.path) if is_notebook else None
        self._lines = [] if is_notebook else mended.before.decode(errors="replace").splitlines()

    def finding(self, note: Note, severity: Severity) -> Finding:
        """Return a note of a rewrite as a finding that ends at the end of its line."""
        in_text = note.line <= len(self._lines)
        end = len(self._lines[note.line - 1]) + 1 if in_text else note.column + 1
        file_line = None
        if self._notebook is not None and note.cell is not None:
            file_line = self._notebook.file_line(note.cell, note.line)
        return Finding(
            self._path,
            note.line,
            note.column,
            note.line,
            max(end, note.column + 1),
            code_of(note),
            _names().get(note.own_code or note.rule, note.rule),
            severity,
            note.wrong or note.message,
            note.cell,
            file_line,
            subject=note.subject,
        )


def _is_said(hazard: Finding, left: Iterable[Note]) -> bool:
    """Whether a remaining finding is the hazard or covers it."""
    if any(
        (code_of(note) == hazard.code and is_at(note, hazard.line, hazard.cell))
        or (
            (note.cell, note.line) == (hazard.cell, hazard.line)
            and note.rule == REMAINING
            and (
                hazard.column <= note.column < hazard.end_column
                or (hazard.subject and note.subject == hazard.subject)
            )
        )
        for note in left
    ):
        return True
    return bool(hazard.about) and all(
        any(code_of(note) == hazard.code and is_at(note, line, hazard.cell) for note in left)
        for line in hazard.about
    )


def _fixed(hazard: Finding, edits: Iterable[Note]) -> Finding:
    """Return a hazard that edits fix, with their safety and its condition."""
    place = (hazard.cell, hazard.line, hazard.code)
    mends = {note.rule for note in edits if (note.cell, note.line, code_of(note)) == place}
    rules = (rules_by_name().get(name) for name in sorted(mends))
    condition = next((rule.condition for rule in rules if rule is not None and rule.condition), "")
    return replace(hazard, fix=Fix.UNSAFE if condition else Fix.SAFE, condition=condition)


@cache
def _names() -> Mapping[str, str]:
    """Names of the hazards, and of the rules without a hazard, by their codes."""
    rules = {code: name for rule in reversed(all_rules()) for code, name in rule.codes.items()}
    return rules | {hazard.code: hazard.name for hazard in all_hazards()}
