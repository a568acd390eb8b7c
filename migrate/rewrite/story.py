"""Rewrite one script: read, plan, apply, and check that the result stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import libcst as cst

from migrate.errors import MigrateError
from migrate.reading.calls.facts import ModuleCalls
from migrate.reading.facts import Facts
from migrate.reading.flow.pending_values import COLLECTIVE
from migrate.reading.tree.source import NotPythonError, Source, parse, read
from migrate.reading.tree.tree import nodes_of
from migrate.rewrite.after import after_rewrite, origins, run_elsewhere
from migrate.rewrite.apply import apply
from migrate.rewrite.edits.one_cell import within_cells
from migrate.rewrite.net import without_step
from migrate.rewrite.options import DEFAULT, Options
from migrate.rewrite.plan import Plan, plan
from migrate.rewrite.results import Note, Rewrite
from migrate.rewrite.rule import Edit, Finding, Rule, Wrap
from migrate.rewrite.rules import all_rules
from migrate.rewrite.workspace import Workspace


class NotStableError(MigrateError):
    """The rewritten script would change once more, or does not parse.

    Cause: a defect of this program, not of the script.

    Remedy: report it with the script; nothing was written.
    """


def rewrite(path: Path, rules: Sequence[Rule] | None = None, options: Options = DEFAULT) -> Rewrite:
    """Return the rewritten form of the script at `path`; nothing is written.

    Raises:
        UnreadableScriptError, NotUtf8Error, NotPythonError: the script cannot be read.
        RuleConflictError, NotStableError: a defect of the rules.
    """
    return rewrite_source(read(path), rules, options=options)


def rewrite_source(
    source: Source,
    rules: Sequence[Rule] | None = None,
    *,
    calls: ModuleCalls | None = None,
    options: Options = DEFAULT,
    check: bool = True,
) -> Rewrite:
    """Return the rewritten form of `source`.

    Args:
        source: the script.
        rules: all of them by default.
        calls: what its calls run, where its project is known already.
        options: the form of the output.
        check: whether to see that a second run would change nothing.
    """
    chosen, rules = rules, all_rules() if rules is None else rules
    found, data = _pass(source, [rule for rule in rules if not rule.after], calls, options)
    later = _later(source, data, [rule for rule in rules if rule.after], options)
    data = later.data
    if data == source.data:
        rewritten = found.context
    elif check:
        rewritten = check_stable(data, source.path, rules, options=options)
    else:
        rewritten = Workspace(parse(data, source.path), options=options)
    findings = (*_notes(found, found.findings), *later.findings)
    if chosen is None:
        findings += _notes(found, tuple(without_step(found)))
    elsewhere: tuple[Path, ...] = ()
    if chosen is None:
        facts = Facts(rewritten, portable=rewritten.portable)
        findings = _with_hazards(found.context, facts, findings)
        elsewhere = run_elsewhere(facts)
    edits = [
        *_notes(found, found.edits),
        *later.edits,
        *_lost_comments(found, rewritten.module),
    ]
    edits.sort(key=lambda note: (note.line, note.column))
    return Rewrite(source, data, tuple(edits), findings, elsewhere)


def _with_hazards(
    original: Workspace, rewritten: Facts, findings: tuple[Note, ...]
) -> tuple[Note, ...]:
    """Return `findings` with the hazards that the rewritten script still has, in order of the lines."""
    spoken = [(note.line, note.column, note.rule, note.message) for note in findings]
    # Of these the file that moves the model takes care.
    spoken += [(line, 1, "tied-weights", "") for line in original.calls.ties.kept]
    left = after_rewrite(original.source.text, rewritten, spoken)
    hazards = [Note(one.line, one.column, one.code, one.message) for one in left]
    return tuple(sorted((*findings, *hazards), key=lambda note: (note.line, note.column)))


@dataclass(frozen=True)
class _Later:
    """What the rules that look at a rewritten script have made of it, at the lines of the original."""

    data: bytes
    edits: tuple[Note, ...] = ()
    findings: tuple[Note, ...] = ()


def _later(source: Source, data: bytes, rules: Sequence[Rule], options: Options) -> _Later:
    wanted = options.defer_reads or source.is_notebook or COLLECTIVE.search(data)
    if not rules or not wanted:
        return _Later(data)
    between = parse(data, source.path)
    found, data = _pass(between, rules, None, options)
    lines = origins(source.text.splitlines(), between.text.splitlines())

    def at_origin(notes: Sequence[Note]) -> tuple[Note, ...]:
        moved = []
        for note in notes:
            # A line that the first rules added counts with the one above it.
            near = max((line for line in lines if line <= note.line), default=0)
            line, shift = lines.get(near, (1, 0))
            moved.append(replace(note, line=line, column=max(1, note.column + shift)))
        return tuple(moved)

    # What no rule handles has been reported before.
    names = {rule.name for rule in rules}
    findings = [finding for finding in found.findings if finding.rule in names]
    return _Later(data, at_origin(_notes(found, found.edits)), at_origin(_notes(found, findings)))


def _pass(
    source: Source, rules: Sequence[Rule], calls: ModuleCalls | None, options: Options
) -> tuple[Plan, bytes]:
    context = Workspace(source, calls, options)
    found = plan(context, rules)
    if source.is_notebook:
        found = within_cells(found)
    if not found.edits:
        return found, source.data
    module = apply(
        context.module,
        found.edits,
        context.imports,
        context.definitions,
        gives_all=context.calls.gives_all,
    )
    return found, source.render(module)


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
    rules = all_rules() if rules is None else rules
    try:
        again, _ = _pass(parse(data, path), rules, calls, options)
    except NotPythonError as error:
        raise NotStableError(
            f"{path}: the rewritten script does not parse ({error.what})",
            "please report this with the script",
        ) from error
    if again.edits:
        raise NotStableError(
            f"{path}: the rule {again.edits[0].rule} would change the rewritten script again "
            f"({again.edits[0].message})",
            "please report this with the script",
        )
    return again.context


def _lost_comments(found: Plan, rewritten: cst.Module) -> Iterator[Note]:
    """Yield a note for each comment of the script that its rewritten form does not have."""
    context = found.context
    if rewritten is context.module:
        return
    kept = Counter(comment.value for comment in nodes_of(rewritten, cst.Comment))
    for comment in nodes_of(context.module, cst.Comment):
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
