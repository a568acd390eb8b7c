"""Remaining hazards of a rewritten script or folder, at the lines of the original."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from migrate.catalogue.target import XLA, Target
from migrate.check.check import check_facts
from migrate.check.common import ImportHazard
from migrate.check.config import Config
from migrate.check.finding import UNREADABLE, UNUSED_IGNORE
from migrate.check.hazard import Severity
from migrate.check.rules import all_hazards
from migrate.check.rules.syncs.read_in_function import ReadInFunction
from migrate.check.which_read import HAZARDS
from migrate.errors import MigrateError
from migrate.model.calls.analysis import Analysis
from migrate.model.facts import ModuleCalls, calls_of_file
from migrate.reading.facts import Facts
from migrate.reading.project.reach import Entries, Leaving, leaving, reached, starts
from migrate.reading.project.workers import is_kept, keep, kept, let_go
from migrate.reading.script import Script
from migrate.reading.values.entries import StepFunction
from migrate.rewrite.left.codes import code_of, is_at
from migrate.rewrite.left.deferrable import SUGGESTION, deferrable_lines
from migrate.rewrite.left.function_lines import FunctionLines
from migrate.rewrite.left.remaining import NAME as REMAINING
from migrate.rewrite.options import DEFAULT
from migrate.rewrite.results import Note
from migrate.rewrite.workspace import Workspace
from migrate.syntax.interpreter import deep
from migrate.syntax.origins import at_origin, origins
from migrate.syntax.source import parse

# Reads of the device. A rewrite reports the reads of every step.
READS = frozenset(hazard.code for hazard in HAZARDS) - {ReadInFunction.code}


@dataclass(frozen=True)
class Left:
    """Hazard of the rewritten script.

    Args:
        line, column: location in the original, both from 1.
        code: the hazard's code.
        message: what happens on a TPU, and what to do.
        severity: severity. `INFO` if the script is correct and could be faster.
        is_hint: whether it costs little, or another finding covers it. Only `migrate check` shows it.
        subject: name of the reported construct, with which `message` begins. Empty if it is no name.
    """

    line: int
    column: int
    code: str
    message: str
    severity: Severity = Severity.ERROR
    is_hint: bool = False
    subject: str = ""


def note_of(left: Left) -> Note:
    """Return the note on a hazard of the rewritten script."""
    return Note(
        left.line,
        left.column,
        left.code,
        left.message,
        severity=left.severity,
        is_hint=left.is_hint,
        subject=left.subject,
    )


def after_rewrite(
    original: str, rewritten: Facts, spoken: Sequence[Note] = (), target: Target = XLA
) -> tuple[Left, ...]:
    """Return the hazards that the rewrite did not handle.

    Args:
        original: the text of the script before the rewrite.
        rewritten: the script after the rewrite, changed or not.
        spoken: findings of the rewrite, in the original. A hazard that they report is not reported twice,
            and neither is the import of a library whose uses they report.
        target: the package that drives the TPU.
    """
    return left_of(rewritten, original, spoken, target=target)


def left_of(
    facts: Facts,
    original: str,
    spoken: Sequence[Note],
    whole: bool = True,
    *,
    target: Target = XLA,
) -> tuple[Left, ...]:
    """Return the hazards of a script with known facts. Unless `whole`: of steps of other files."""
    lines = original.splitlines()
    new = facts.context.source.positions.code.splitlines()
    origin = origins(lines, new)
    hazards = {hazard.code: hazard for hazard in all_hazards()}
    remaining: list[Left] = []
    deferred: frozenset[int] | None = None
    script = facts.context
    options = script.options if isinstance(script, Workspace) else DEFAULT
    config = Config(ignore=(UNREADABLE, UNUSED_IGNORE), target=target)
    hits = list(check_facts(facts, config, whole))
    # A line with a worse finding, or with a finding for the call that reads, gets no second one.
    worse = {
        hit.line
        for hit in hits
        if hit.severity is not Severity.INFO or hit.code == ReadInFunction.code
    }
    for hit in hits:
        mention = hit.severity is Severity.INFO
        # With --defer-reads, the rule of that option reports the reads that stay.
        is_read = hit.code in READS and not options.defer_reads and hit.line not in worse
        is_hint = mention and not (is_read or hit.is_shown)
        came_from = origin.get(hit.line)
        if came_from is None and hit.code in READS:
            came_from = _origin_of_read(hit.line, new, origin)
        if came_from is None:
            continue
        line, shift = came_from
        column = max(1, hit.column + shift)
        end = max(column, hit.end_column + shift)
        if any(
            (code_of(said) == hit.code and is_at(said, line))
            or (
                said.line == line
                and said.rule == REMAINING
                and (
                    column <= said.column < end
                    or (hit.subject != "" and said.subject == hit.subject)
                )
            )
            for said in spoken
        ):
            continue
        if hit.about and all(_is_reported(at, hit.code, origin, spoken) for at in hit.about):
            continue
        if isinstance(hazards[hit.code], ImportHazard) and hit.subject:
            library = hit.subject.partition(".")[0]
            used = any(said.subject.partition(".")[0] == library for said in spoken)
            is_hint = is_hint or used
        message = at_origin(hit.text, origin)
        reads = hit.code in READS or hit.code == ReadInFunction.code
        if mention and not is_hint and reads and isinstance(script, Workspace):
            deferred = deferrable_lines(script) if deferred is None else deferred
            message = message.ended(f"; {SUGGESTION}") if hit.line in deferred else message
        left = Left(line, column, hit.code, message, hit.severity, is_hint, hit.subject)
        if left not in remaining:
            remaining.append(left)
    return tuple(remaining)


def _is_reported(
    line: int, code: str, origin: Mapping[int, tuple[int, int]], spoken: Sequence[Note]
) -> bool:
    """Whether the rewrite has a finding of a code on a line of its result."""
    at = origin.get(line)
    return at is not None and any(code_of(said) == code and is_at(said, at[0]) for said in spoken)


def _origin_of_read(
    line: int, lines: Sequence[str], origin: Mapping[int, tuple[int, int]]
) -> tuple[int, int] | None:
    """Return the original location of a read that the rewrite moved below its step.

    A copy is at that location: `loss_value = loss.detach().clone()`, above `loss_value = loss_value.item()`.
    """
    target, assigns, _ = lines[line - 1].partition(" = ")
    above = (number for number in range(line - 1, 0, -1) if number in origin)
    if not assigns:
        return None
    copies = (n for n in above if lines[n - 1].strip().startswith(f"{target.strip()} = "))
    copy = next(copies, None)
    return None if copy is None else (origin[copy][0], 0)


def run_elsewhere(facts: Facts) -> tuple[Path, ...]:
    """Return the other files of the project that need the look that only a folder's rewrite takes, in order.

    They have functions that steps of the script call, make batches, or name an accelerator.
    """
    context, here = facts.context, facts.context.file
    calls = [call for call, _ in facts.steps.calls]
    ran = (
        definition
        for call in calls
        for definition in (*context.run_by(call), *context.run_later(call))
    )
    paths = {definition.path: None for definition in ran}
    paths |= dict.fromkeys(context.calls.accelerated_imports)
    return tuple(path for path in paths if path != here)


Result = TypeVar("Result")


@dataclass(frozen=True)
class FileAnalysis:
    """A file of the rewritten folder to analyze, with its functions that steps of other files run.

    Args:
        path, name: the file, and its name for the user.
        before, after: its content before and after the rewrite.
        calls: functions that its calls run.
        entries: functions that steps of other files run, by the lines of their `def`.
        spoken: findings that were reported, at the lines before the rewrite.
        target: the package that drives the TPU.
    """

    path: Path
    name: str
    before: bytes
    after: bytes
    calls: ModuleCalls
    entries: Mapping[int, StepFunction]
    spoken: tuple[Note, ...] = field(default=())
    target: Target = XLA


class JobRunner(Protocol):
    """Does work for each of several files, in their order."""

    def __call__(
        self, work: Callable[[FileAnalysis], Result], jobs: Sequence[FileAnalysis], /
    ) -> list[Result]:
        """Return the results of `work` for `jobs`."""


def left_in_functions(
    first: Analysis,
    last: Analysis,
    calls: Mapping[Path, ModuleCalls],
    before: Mapping[Path, bytes],
    spoken: Mapping[Path, Sequence[Note]],
    folder: Path,
    left_before: Mapping[Path, tuple[Leaving, ...]],
    run: JobRunner,
    function_lines: FunctionLines,
    target: Target = XLA,
) -> dict[Path, tuple[Left, ...]]:
    """Return the remaining manual work in functions that steps of other files run, by file.

    Args:
        first, last: the folder before and after the rewrite.
        calls: functions that the calls of its files run: from the new content of changed files, and from the
            first analysis of the others.
        before: content of its files before the rewrite.
        spoken: findings that were reported for the files.
        folder: the folder.
        left_before: functions of other files that a file's steps run, for files already analyzed.
        run: does work for each file, in their order.
        function_lines: lines of the functions when the facts about each file were collected.
        target: the package that drives the TPU.
    """
    calls = dict(calls)
    # Results for a file, with their entries; None until all entries of the file are known.
    seen: dict[Path, tuple[Mapping[int, StepFunction], tuple[Left, ...] | None]] = {}

    def looks(paths: Sequence[Path], entries: Entries) -> list[FileAnalysis]:
        looks = []
        for path in paths:
            if path not in calls:
                calls[path] = calls_of_file(first, path)
            data = last.scopes[path].module.data
            name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
            entered = dict(entries.get(path, {}))  # as far as known now
            notes = tuple(spoken.get(path, ()))
            of_file = before.get(path, data), data, calls[path], entered, notes
            looks.append(FileAnalysis(path, name, *of_file, target))
        return looks

    def look(paths: Sequence[Path], entries: Entries) -> Iterator[Iterator[Leaving]]:
        known = {path: left_before[path] for path in paths if path in left_before}
        known = {path: leavings for path, leavings in known.items() if not entries.get(path)}
        jobs = looks([path for path in paths if path not in known], entries)
        for job, (leads_to, left) in zip(jobs, run(looked_at, jobs), strict=True):
            known[job.path] = leads_to
            seen[job.path] = job.entries, left
        for path in paths:
            yield function_lines.present(path, known[path])

    starting = [path for path in starts(last, calls) if path in before]
    entries = reached(starting, look)
    done = {
        path: left
        for path, (known, left) in seen.items()
        if left is not None and known == entries.get(path)
    }
    jobs = looks([path for path in entries if path not in done], entries)
    for job, left in zip(jobs, run(found_at, jobs), strict=True):
        done[job.path] = left
    return {path: done[path] for path in entries}


@deep
def looked_at(look: FileAnalysis) -> tuple[tuple[Leaving, ...], tuple[Left, ...] | None]:
    """Return the functions that steps of a file run elsewhere, and its remaining findings at original lines.

    Returns:
        The functions of other files, and the remaining manual work in functions of this file that steps of
        other files run. It is None if the facts about the file are kept for `found_at`: more steps may lead
        into the file. If they are not kept, both are returned at once: parsing the file takes long.
    """
    facts = _facts(look)
    if facts is None:
        return (), ()
    script = facts.context
    leads_to = left_for(facts, look.name, look.before, look.after)
    left = () if not look.entries else None if is_kept(script) else _left_in(facts, look)
    script.entered = facts if left is None else None
    let_go(script)
    return leads_to, left


@deep
def found_at(look: FileAnalysis) -> tuple[Left, ...]:
    """Return the remaining manual work in functions of a file that steps of other files run."""
    script = kept(look.path, look.after)
    facts = script.entered if script is not None else None
    if not isinstance(facts, Facts) or facts.entries != look.entries:
        facts = _facts(look)
        if facts is None:
            return ()
        # What a value is may depend on what was asked before: the questions come in one order.
        left_for(facts, look.name, look.before, look.after)
    left = _left_in(facts, look)
    facts.context.entered = None
    let_go(facts.context)
    return left


def left_for(facts: Facts, name: str, before: bytes, after: bytes) -> tuple[Leaving, ...]:
    """Return the functions of other files that the steps of a script run, by the lines before the rewrite.

    Args:
        facts: facts about the script after the rewrite.
        name: name of the file for the user.
        before, after: its content before and after the rewrite.
    """
    origin = None if before == after else origins(_lines(before), _lines(after))

    def at_origin(line: int) -> int:
        if origin is None:
            return line
        near = max((start for start in origin if start <= line), default=line)
        return origin[near][0] if near in origin else line

    return tuple(leaving(facts, name, at_origin))


def _left_in(facts: Facts, look: FileAnalysis) -> tuple[Left, ...]:
    reported = {(said.line, said.rule) for said in look.spoken}
    text = look.before.decode(errors="replace")
    left = left_of(facts, text, look.spoken, whole=False, target=look.target)
    return tuple(note for note in left if (note.line, note.code) not in reported)


def _facts(look: FileAnalysis) -> Facts | None:
    script = kept(look.path, look.after)
    if script is None:
        try:
            script = Script(parse(look.after, look.path), look.calls)
        except MigrateError:
            return None  # reported where the file itself is rewritten
        keep(script)
    return Facts(script, look.entries)


def _lines(data: bytes) -> list[str]:
    return data.decode(errors="replace").splitlines()
