"""Rewrite one script: read, plan, apply, and check that the result is stable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import libcst as cst

from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.check.ignores import ignores
from migrate.errors import MigrateError
from migrate.model.facts import AnalyzedProject, ModuleCalls, calls_of_script
from migrate.reading.collectives.pending_values import COLLECTIVE
from migrate.reading.facts import Facts, facts_of
from migrate.rewrite.applied_plan import applied, impossible, in_order, notes_on, planned
from migrate.rewrite.left.after import (
    Left,
    after_rewrite,
    note_of,
    run_elsewhere,
)
from migrate.rewrite.left.codes import selected, with_used
from migrate.rewrite.left.dead import unread_options, without_dead
from migrate.rewrite.left.framework import left_to_framework, lines_of_cuda
from migrate.rewrite.left.launch_and_steps import without_launch, without_step
from migrate.rewrite.options import DEFAULT, RewriteOptions
from migrate.rewrite.own_shims import refuse_own_shims
from migrate.rewrite.plan import Plan
from migrate.rewrite.results import NO_COMMENTS, Comments, Note, Rewrite
from migrate.rewrite.rule import Edit, Rule, Wrap
from migrate.rewrite.rules import rules_for
from migrate.rewrite.withdrawn import EVERYWHERE, Withdrawn, is_covered
from migrate.rewrite.workspace import Workspace
from migrate.syntax.interpreter import deep
from migrate.syntax.origins import at_origin, origins
from migrate.syntax.source import (
    NotPythonError,
    Source,
    decoded,
    parse,
    read,
    why_unread,
)

# Turns: the rules; the rules on the result of other rules; what both enable. A rule that still changes
# something after so many turns does not settle.
TURNS = 6
# Groups of hazards about names of CUDA. If a framework runs the script, its finding lists the lines.
OF_CUDA = ("XLA7", "XLA80", "XLA82")


class NotStableError(MigrateError):
    """A rewritten script would change once more, or does not parse.

    Cause: a defect of this program, not of the script.

    Remedy: report it with the script; nothing was written.
    """


@deep
def rewrite(
    path: Path,
    rules: Sequence[Rule] | None = None,
    options: RewriteOptions = DEFAULT,
    projects: Sequence[AnalyzedProject] = (),
) -> Rewrite:
    """Return the rewritten form of the script at `path`, without writing it.

    Args:
        path: the script.
        rules: the rules. Default: all.
        options: options of the rewrite.
        projects: projects that are already analyzed.

    Raises:
        UnreadableScriptError, NotUtf8Error, NotPythonError: the script cannot be read.
    """
    source = read(path)
    calls = calls_of_script(path, source.data, projects)
    return rewrite_source(source, rules, calls=calls, options=options)


@deep
def rewrite_source(
    source: Source,
    rules: Sequence[Rule] | None = None,
    *,
    calls: ModuleCalls | None = None,
    options: RewriteOptions = DEFAULT,
) -> Rewrite:
    """Return the rewritten form of `source`.

    Args:
        source: the script.
        rules: the rules. Default: all.
        calls: functions that its calls run, if its project is already analyzed.
        options: options of the rewrite.
    """
    draft, script = first_turn(source, rules, calls=calls, options=options)
    if draft.led:
        draft = with_hazards(draft, facts_of(script), options.config)
        return Rewrite(
            source, draft.data, (), draft.findings, hints=draft.hints, comments=draft.comments
        )
    while not draft.settled:
        if draft.turns == 0:
            withdrawn = draft.withdrawn
            draft, script = first_turn(
                source, rules, calls=calls, options=options, withdrawn=withdrawn
            )
        else:
            draft, script = next_turn(draft, rules, options=options)
    elsewhere: tuple[Path, ...] = ()
    if rules is None:
        facts = facts_of(script)
        draft = with_hazards(draft, facts, options.config)
        elsewhere = run_elsewhere(facts)
    unread = tuple(filter(None, map(why_unread, script.calls.unread_imports)))
    return Rewrite(
        source,
        draft.data,
        draft.edits,
        draft.findings,
        elsewhere,
        unread,
        draft.hints,
        draft.comments,
    )


@dataclass(frozen=True)
class Draft:
    """A script between two turns of the rules; it can be sent to another process.

    Args:
        path, before: the file, and its content at first.
        data: the content after the turns so far.
        edits, findings: edits and remaining manual work, at lines of the original.
        turns: number of turns. None if the script must be restarted with more edits withdrawn.
        withdrawn: the edits that are not made.
        comments: comments that silence findings.
        hints: further findings that cost little.
        settled: whether the last turn changed nothing.
        led: whether a framework runs its training, so that it stays as it is.
        named: lines of such a script whose CUDA names the finding of the framework lists.
    """

    path: Path
    before: bytes
    data: bytes
    edits: tuple[Note, ...]
    findings: tuple[Note, ...]
    turns: int = 1
    settled: bool = True
    led: bool = False
    named: tuple[int, ...] = ()
    withdrawn: tuple[Withdrawn, ...] = ()
    comments: Comments = NO_COMMENTS
    hints: tuple[Note, ...] = ()


def first_turn(
    source: Source,
    rules: Sequence[Rule] | None = None,
    *,
    calls: ModuleCalls | None = None,
    options: RewriteOptions = DEFAULT,
    withdrawn: tuple[Withdrawn, ...] = (),
) -> tuple[Draft, Workspace]:
    """Return the result of the first rules for a script, and the facts about it.

    Rules that inspect the result of other rules run in the next turn, or now if there were no edits.

    Args:
        source: the script.
        rules: the rules. Default: all.
        calls: functions that its calls run, if its project is already analyzed.
        options: options of the rewrite.
        withdrawn: the edits that are not made.
    """
    script = Workspace(source, calls, options)
    comments = Comments({(None, line): ignore.codes for line, ignore in ignores(script).items()})
    first, later = _in_turns(rules_for(options.config.target) if rules is None else rules)
    plan = planned(script, first)
    findings = list(plan.findings)
    if rules is None and script.calls.led is not None:
        left = list(left_to_framework(plan, script.calls.led))
        return Draft(
            source.path,
            source.data,
            source.data,
            (),
            notes_on(plan, left),
            led=True,
            named=tuple(lines_of_cuda(plan)),
            comments=comments,
        ), script
    if (
        rules is None and not script.for_torch_tpu
    ):  # which has no steps, and starts as the script did
        findings += without_step(plan)
        findings += without_launch(plan)
    looks = options.defer_reads or source.is_notebook or COLLECTIVE.search(source.data)
    if later and not _without(withdrawn, plan).edits and (looks or script.guards.any):
        after = planned(script, later, rest=False)
        if after.edits:  # imports that the first rules asked for are not needed now
            script = Workspace(source, script.calls, options)
            after = planned(script, later, rest=False)
        findings += after.findings
        plan = after
    wanted = notes_on(plan, plan.edits)  # also the withdrawn edits
    if plan.needs_shims:
        refuse_own_shims(plan, wanted)
    plan = _without(withdrawn, plan)
    if wrong := list(impossible(plan)):
        more = (Withdrawn(edit.rule, *_statement(edit, script), why) for edit, why in wrong)
        return first_turn(
            source,
            rules,
            calls=script.calls,
            options=options,
            withdrawn=(*withdrawn, *dict.fromkeys(more)),
        )
    if rules is None and plan.edits and not source.is_notebook:
        cleared, others = without_dead(plan, findings, applied(plan).module)
        if _without(withdrawn, cleared).edits == cleared.edits and not any(impossible(cleared)):
            plan, findings = cleared, others
    result = applied(plan)
    edits = (*notes_on(plan, plan.edits), *result.lost)
    draft = Draft(
        source.path,
        source.data,
        result.data,
        in_order(edits),
        in_order((*notes_on(plan, findings), *_not_done(withdrawn, wanted))),
        settled=result.data == source.data,
        withdrawn=withdrawn,
        comments=comments,
    )
    return draft, script


def next_turn(
    draft: Draft,
    rules: Sequence[Rule] | None = None,
    *,
    calls: ModuleCalls | None = None,
    options: RewriteOptions = DEFAULT,
) -> tuple[Draft, Workspace]:
    """Run the rules on the result of the turns so far.

    Rules that inspect the result of other rules run now. Another rule may edit what the first turn has
    enabled, but not its own result: then its edit is withdrawn, and the script is restarted without it.

    Args:
        draft: the script after the previous turn.
        rules: the rules. Default: all.
        calls: functions that its calls run now, if its project is already analyzed.
        options: options of the rewrite.

    Returns:
        The script after the turn, and the facts about it.
    """
    first, later = _in_turns(rules_for(options.config.target) if rules is None else rules)
    try:
        script = Workspace(parse(draft.data, draft.path), calls, options)
    except NotPythonError as error:
        reason = f"the result does not parse ({error.what})"
        before = Workspace(parse(draft.before, draft.path), calls, options)
        return _begin_again(draft, {note.rule: reason for note in draft.edits}), before
    plan = planned(script, (*first, *later), rest=False)
    notes = list(_at_origin(draft, script.source, notes_on(plan, plan.edits)))
    pairs = list(zip(plan.edits, notes, strict=True))
    pairs = [(e, n) for e, n in pairs if not is_covered(draft.withdrawn, e.rule, n.line)]
    reported = {(note.rule, note.line) for note in draft.findings if note.withdrawn}
    again = (n for n in notes if (n.rule, n.line) not in reported)
    not_done = _not_done(draft.withdrawn, list(again))
    draft = replace(draft, findings=(*draft.findings, *not_done))
    plan = replace(plan, edits=tuple(edit for edit, _ in pairs))
    if plan.needs_shims:
        refuse_own_shims(plan, [note for _, note in pairs])
    allowed = {rule.name for rule in later} if draft.turns == 1 else set()
    edited = {(note.rule, note.line) for note in draft.edits}
    late = draft.turns >= TURNS
    why = {
        edit.rule: "the rule would change its own result again"
        for edit, note in pairs
        if edit.rule not in allowed and (late or (note.rule, note.line) in edited)
    } or {edit.rule: why for edit, why in impossible(plan)}
    if why:
        return _begin_again(draft, why), script
    return _continued(draft, plan, {rule.name for rule in later}), script


def _begin_again(draft: Draft, why: Mapping[str, str]) -> Draft:
    """Return the original script, with all edits of some rules withdrawn.

    Args:
        draft: the script.
        why: names of the rules, each with the reason.
    """
    more = tuple(Withdrawn(rule, *EVERYWHERE, reason) for rule, reason in why.items())
    return Draft(
        draft.path,
        draft.before,
        draft.before,
        (),
        (),
        turns=0,
        settled=False,
        withdrawn=(*draft.withdrawn, *more),
    )


def _not_done(withdrawn: Iterable[Withdrawn], edits: Sequence[Note]) -> list[Note]:
    """Return the findings that replace withdrawn edits among `edits`, each once."""
    return list(dict.fromkeys(note for part in withdrawn for note in part.notes(edits)))


def _statement(edit: Edit | Wrap, script: Workspace) -> tuple[int, int]:
    """Return the lines of the statement at module level that holds an edit."""
    place = edit.node
    for above in script.ancestors(place):
        if isinstance(above, cst.Module):
            break
        place = above
    return script.position(place).line, script.end(place).line


def _without(withdrawn: Sequence[Withdrawn], plan: Plan) -> Plan:
    """Return a plan for the original script without the withdrawn edits."""
    if not withdrawn:
        return plan
    position = plan.context.position
    kept = [e for e in plan.edits if not is_covered(withdrawn, e.rule, position(e.node).line)]
    return replace(plan, edits=tuple(kept))


@deep
def check_stable(
    data: bytes,
    path: Path,
    rules: Sequence[Rule] | None = None,
    *,
    calls: ModuleCalls | None = None,
    options: RewriteOptions = DEFAULT,
) -> Workspace:
    """Check that `data`, a rewritten form of the script at `path`, parses and would not change again.

    Returns:
        The facts about the rewritten script.

    Raises:
        NotStableError: it does not parse, or would change again.
    """
    first, later = _in_turns(rules_for(options.config.target) if rules is None else rules)
    try:
        script = Workspace(parse(data, path), calls, options)
    except NotPythonError as error:
        raise NotStableError(
            f"{path}: the rewritten script does not parse ({error.what})",
            "this is a bug; please report it with the script",
        ) from error
    again = next(iter(planned(script, (*first, *later), rest=False).edits), None)
    if again is not None:
        raise NotStableError(
            f"{path}: the rule {again.rule} would change the rewritten script again "
            f"({again.message})",
            "this is a bug; please report it with the script",
        )
    return script


def with_hazards(draft: Draft, facts: Facts, config: Config) -> Draft:
    """Return a settled script with its remaining hazards, in the order of the lines.

    Args:
        draft: the script.
        facts: facts about its present content.
        config: which findings are reported.
    """
    before = decoded(draft.before, draft.path)
    left = after_rewrite(before, facts, draft.findings, config.target)
    if draft.led:
        left = tuple(hazard for hazard in left if not _is_named(hazard, draft))
    notes = (*draft.findings, *map(note_of, left))
    read = facts.context.calls.options_read
    notes += tuple(unread_options(before, facts.context.source.text, draft.edits, notes, read))
    comments = with_used(draft.comments, (*notes, *draft.edits))
    notes = in_order(selected(notes, config, comments))
    return replace(
        draft,
        findings=tuple(note for note in notes if not note.is_hint),
        hints=tuple(note for note in notes if note.is_hint),
        comments=comments,
    )


def _is_named(hazard: Left, draft: Draft) -> bool:
    """Whether the finding of a framework already names the line, or the hazard is a hint about speed."""
    return hazard.severity is Severity.INFO or (
        hazard.line in draft.named and hazard.code.startswith(OF_CUDA)
    )


def _in_turns(rules: Sequence[Rule]) -> tuple[list[Rule], list[Rule]]:
    """Return the rules that run on the script, and those that run on the result of the others."""
    return [rule for rule in rules if not rule.after], [rule for rule in rules if rule.after]


def _continued(draft: Draft, plan: Plan, later: Set[str]) -> Draft:
    """Return `draft` after one more turn, in which only findings of the rules `later` count."""
    # Constructs that no rule handles were reported before.
    findings = [finding for finding in plan.findings if finding.rule in later]
    result = applied(plan)
    edits = (*notes_on(plan, plan.edits), *result.lost)
    notes = list(_at_origin(draft, plan.context.source, edits))
    notes_left = _at_origin(draft, plan.context.source, notes_on(plan, findings))
    more = [note for note in notes_left if note not in draft.findings]  # each turn reports it again
    done = {(note.rule, note.line) for note in notes}  # once left to do by hand
    before = [note for note in draft.findings if (note.rule, note.line) not in done]
    return replace(
        draft,
        data=result.data,
        edits=in_order((*draft.edits, *notes)),
        findings=(*before, *more),
        turns=draft.turns + 1,
        settled=result.data == draft.data,
    )


def _at_origin(draft: Draft, now: Source, notes: Sequence[Note]) -> Iterator[Note]:
    """Yield `notes` on a rewritten script at the lines of the original."""
    if not notes:
        return
    before = decoded(draft.before, draft.path)
    lines = origins(before.splitlines(), now.text.splitlines())
    for note in notes:
        # A line that the first rules added counts as the line above it.
        near = max((line for line in lines if line <= note.line), default=0)
        line, shift = lines.get(near, (1, 0))
        message = at_origin(note.message, lines)
        yield replace(
            note,
            line=line,
            column=max(1, note.column + shift),
            message=message,
            wrong=at_origin(note.wrong, lines),
        )
