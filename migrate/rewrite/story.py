"""Rewrite one script: read, plan, apply, and check that the result stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import libcst as cst

from migrate.errors import MigrateError
from migrate.reading.calls.facts import ModuleCalls
from migrate.reading.facts import Facts, facts_of
from migrate.reading.flow.pending_values import COLLECTIVE
from migrate.reading.tree.depth import deep
from migrate.reading.tree.origins import origins
from migrate.reading.tree.source import NotPythonError, Source, decoded, parse, read, why_unread
from migrate.reading.tree.tree import nodes_of
from migrate.rewrite.apply import apply
from migrate.rewrite.edits.one_cell import within_cells
from migrate.rewrite.left.after import after_rewrite, run_elsewhere, said_at_origin
from migrate.rewrite.left.framework import left_to_framework
from migrate.rewrite.left.net import without_launch, without_step
from migrate.rewrite.options import DEFAULT, Options
from migrate.rewrite.plan import Plan, plan
from migrate.rewrite.results import Note, Rewrite
from migrate.rewrite.rule import Edit, Finding, Rule, Wrap
from migrate.rewrite.rules import all_rules
from migrate.rewrite.workspace import Workspace

# The rules; those that look at what these have made; a last look, which must find nothing to change.
TURNS = 3


class NotStableError(MigrateError):
    """The rewritten script would change once more, or does not parse.

    Cause: a defect of this program, not of the script.

    Remedy: report it with the script; nothing was written.
    """


@deep
def rewrite(path: Path, rules: Sequence[Rule] | None = None, options: Options = DEFAULT) -> Rewrite:
    """Return the rewritten form of the script at `path`; nothing is written.

    Raises:
        UnreadableScriptError, NotUtf8Error, NotPythonError: the script cannot be read.
        RuleConflictError, NotStableError: a defect of the rules.
    """
    return rewrite_source(read(path), rules, options=options)


@deep
def rewrite_source(
    source: Source,
    rules: Sequence[Rule] | None = None,
    *,
    calls: ModuleCalls | None = None,
    options: Options = DEFAULT,
) -> Rewrite:
    """Return the rewritten form of `source`.

    Args:
        source: the script.
        rules: all of them by default.
        calls: what its calls run, where its project is known already.
        options: the form of the output.

    Raises:
        RuleConflictError, NotStableError: a defect of the rules.
    """
    draft, script = first_turn(source, rules, calls=calls, options=options)
    if draft.led:
        return Rewrite(source, draft.data, (), draft.findings)
    while not draft.settled:
        draft, script = next_turn(draft, rules, options=options)
    elsewhere: tuple[Path, ...] = ()
    if rules is None:
        facts = facts_of(script)
        draft = with_hazards(draft, facts)
        elsewhere = run_elsewhere(facts)
    unread = tuple(filter(None, map(why_unread, script.calls.unread_imports)))
    return Rewrite(source, draft.data, draft.edits, draft.findings, elsewhere, unread)


@dataclass(frozen=True)
class Draft:
    """A script between two turns of the rules; it can be sent to another process.

    Args:
        path, before: the file, and its content at first.
        data: what it is after the turns so far.
        edits, findings: what was done and what is left to do by hand, at the lines it had at first.
        moved: the lines, as they were at first, at which the file that moves the model takes care of the
            weights that are tied.
        turns: how many turns there were.
        settled: whether the last of them changed nothing.
        led: whether a framework runs its training, so that it stays as it is.
    """

    path: Path
    before: bytes
    data: bytes
    edits: tuple[Note, ...]
    findings: tuple[Note, ...]
    moved: tuple[int, ...] = ()
    turns: int = 1
    settled: bool = True
    led: bool = False


def first_turn(
    source: Source,
    rules: Sequence[Rule] | None = None,
    *,
    calls: ModuleCalls | None = None,
    options: Options = DEFAULT,
) -> tuple[Draft, Workspace]:
    """Return what the rules make of a script, and what is known of it.

    The rules that look at what others have made have their turn next, or now where there was nothing
    to make.

    Args:
        source: the script.
        rules: all of them by default.
        calls: what its calls run, where its project is known already.
        options: the form of the output.
    """
    script = Workspace(source, calls, options)
    first, later = _in_turns(all_rules() if rules is None else rules)
    found = _plan(script, first)
    findings = list(found.findings)
    if rules is None and script.calls.led is not None:
        left = list(left_to_framework(found, script.calls.led))
        return Draft(
            source.path, source.data, source.data, (), _notes(found, left), led=True
        ), script
    if rules is None:
        findings += without_step(found)
        findings += without_launch(found)
    looks = options.defer_reads or source.is_notebook or COLLECTIVE.search(source.data)
    if later and not found.edits and (looks or script.guards.any):
        after = _plan(script, later, rest=False)
        if after.edits:  # what the first rules wanted to import is not wanted now
            script = Workspace(source, script.calls, options)
            after = _plan(script, later, rest=False)
        findings += after.findings
        found = after
    data, lost = _applied(found)
    edits = (*_notes(found, found.edits), *lost)
    draft = Draft(
        source.path,
        source.data,
        data,
        _in_order(edits),
        _notes(found, findings),
        tuple(script.calls.ties.kept),
        settled=data == source.data,
    )
    return draft, script


def next_turn(
    draft: Draft,
    rules: Sequence[Rule] | None = None,
    *,
    calls: ModuleCalls | None = None,
    options: Options = DEFAULT,
) -> tuple[Draft, Workspace]:
    """See that a rewritten script parses and would not change again, but for the rules that look at it now.

    Args:
        draft: the script as the turn before has left it.
        rules: all of them by default.
        calls: what its calls run now, where its project is known already.
        options: the form of the output.

    Returns:
        What has become of the script, and what is known of it.

    Raises:
        NotStableError: it would change again.
    """
    first, later = _in_turns(all_rules() if rules is None else rules)
    try:
        script = Workspace(parse(draft.data, draft.path), calls, options)
    except NotPythonError as error:
        raise NotStableError(
            f"{draft.path}: the rewritten script does not parse ({error.what})",
            "please report this with the script",
        ) from error
    found = _plan(script, (*first, *later), rest=False)
    allowed = {rule.name for rule in later} if draft.turns == 1 else set()
    again = next((edit for edit in found.edits if edit.rule not in allowed), None)
    if again is not None:
        raise NotStableError(
            f"{draft.path}: the rule {again.rule} would change the rewritten script again "
            f"({again.message})",
            "please report this with the script",
        )
    return _continued(draft, found, {rule.name for rule in later}), script


@deep
def check_stable(
    data: bytes,
    path: Path,
    rules: Sequence[Rule] | None = None,
    *,
    calls: ModuleCalls | None = None,
    options: Options = DEFAULT,
) -> Workspace:
    """See that `data`, a rewritten form of the script at `path`, parses and would not change again.

    Returns:
        What is known of the rewritten script.

    Raises:
        NotStableError: it would.
    """
    draft = Draft(path, data, data, (), (), turns=TURNS)
    return next_turn(draft, rules, calls=calls, options=options)[1]


def with_hazards(draft: Draft, facts: Facts) -> Draft:
    """Return a settled script with the hazards that it still has, in the order of the lines.

    Args:
        draft: the script.
        facts: what is known of it as it is now.
    """
    spoken = [(note.line, note.column, note.rule, note.message) for note in draft.findings]
    spoken += [(line, 1, "tied-weights", "") for line in draft.moved]
    left = after_rewrite(decoded(draft.before, draft.path), facts, spoken)
    hazards = (Note(one.line, one.column, one.code, one.message) for one in left)
    return replace(draft, findings=_in_order((*draft.findings, *hazards)))


def _in_turns(rules: Sequence[Rule]) -> tuple[list[Rule], list[Rule]]:
    """Return the rules that look at the script, and those that look at what these have made of it."""
    return [rule for rule in rules if not rule.after], [rule for rule in rules if rule.after]


def _continued(draft: Draft, found: Plan, later: Set[str]) -> Draft:
    """Return `draft` after one more turn, in which only the rules named `later` have something to say."""
    # What no rule handles has been reported before.
    findings = [finding for finding in found.findings if finding.rule in later]
    data, lost = _applied(found)
    edits = (*_notes(found, found.edits), *lost)
    notes = _at_origin(draft, found.context.source, edits)
    notes_left = _at_origin(draft, found.context.source, _notes(found, findings))
    more = [note for note in notes_left if note not in draft.findings]  # each turn finds it again
    return replace(
        draft,
        data=data,
        edits=_in_order((*draft.edits, *notes)),
        findings=(*draft.findings, *more),
        turns=draft.turns + 1,
        settled=data == draft.data,
    )


def _at_origin(draft: Draft, now: Source, notes: Sequence[Note]) -> Iterator[Note]:
    """Yield `notes` on a rewritten script at the lines that it had at first."""
    if not notes:
        return
    before = decoded(draft.before, draft.path)
    lines = origins(before.splitlines(), now.text.splitlines())
    for note in notes:
        # A line that the first rules added counts with the one above it.
        near = max((line for line in lines if line <= note.line), default=0)
        line, shift = lines.get(near, (1, 0))
        message = said_at_origin(note.message, lines)
        yield replace(note, line=line, column=max(1, note.column + shift), message=message)


def _plan(script: Workspace, rules: Sequence[Rule], *, rest: bool = True) -> Plan:
    found = plan(script, rules, rest=rest)
    return within_cells(found) if script.source.is_notebook else found


def _applied(found: Plan) -> tuple[bytes, tuple[Note, ...]]:
    """Return the script with the edits of a plan, and notes on the comments that went with the code."""
    script = found.context
    if not found.edits:
        return script.source.data, ()
    module = apply(
        script.module,
        found.edits,
        script.imports,
        script.definitions,
        script.ancestors,
        gives_all=script.calls.gives_all,
    )
    return script.source.render(module), tuple(_lost_comments(script, module))


def _lost_comments(context: Workspace, rewritten: cst.Module) -> Iterator[Note]:
    """Yield a note for each comment of the script that its rewritten form does not have."""
    comments = context.all_of(cst.Comment)
    if not comments:
        return
    kept = Counter(comment.value for comment in nodes_of(rewritten, cst.Comment))
    for comment in comments:
        if kept[comment.value]:
            kept[comment.value] -= 1
            continue
        position = context.position(comment)
        message = f"goes with the code that it stands on: {comment.value}"
        yield Note(position.line, position.column + 1, "comments", message)


def _notes(found: Plan, items: Sequence[Edit | Wrap | Finding]) -> tuple[Note, ...]:
    notes = []
    for item in items:
        position = found.context.position(item.node)
        notes.append(Note(position.line, position.column + 1, item.rule, item.message))
    return tuple(notes)


def _in_order(notes: Iterable[Note]) -> tuple[Note, ...]:
    return tuple(sorted(notes, key=lambda note: (note.line, note.column)))
