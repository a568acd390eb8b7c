"""Apply a plan to a script: the edited bytes, notes on the edits, edits that cannot be made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import libcst as cst

from migrate.errors import MigrateError
from migrate.rewrite.apply import apply
from migrate.rewrite.catalogued import Wrong, wrong_by_catalogue
from migrate.rewrite.edits.one_cell import within_cells
from migrate.rewrite.plan import Plan, plan
from migrate.rewrite.results import Note
from migrate.rewrite.rule import Edit, Rule, RuleFinding, Wrap
from migrate.rewrite.withdrawn import claims, culprits
from migrate.rewrite.workspace import Workspace
from migrate.syntax.source import NotPythonError, Source, require_python
from migrate.syntax.tree import nodes_of


def planned(script: Workspace, rules: Sequence[Rule], *, rest: bool = True) -> Plan:
    """Return what rules find in a script. In a notebook, edits stay within its cells.

    Args:
        script: the script.
        rules: the rules to ask.
        rest: whether constructs that no rule handles are reported.
    """
    rules_plan = plan(script, rules, rest=rest)
    return within_cells(rules_plan) if script.source.is_notebook else rules_plan


@dataclass(frozen=True, eq=False)
class EditedScript:
    """A script with the edits of a plan.

    Args:
        module: the edited tree.
        data: the edited script.
        lost: notes on the comments that were removed with code.
    """

    module: cst.Module
    data: bytes
    lost: tuple[Note, ...] = ()


@lru_cache(maxsize=1)  # called to test whether a plan can be applied, and again to apply it
def applied(plan: Plan) -> EditedScript:
    """Return the script with the edits of a plan."""
    script = plan.context
    if not plan.edits:
        return EditedScript(script.module, script.source.data)
    module = apply(
        script.module,
        plan.edits,
        script.imports,
        script.definitions,
        script.ancestors,
        gives_all=script.calls.gives_all,
        kept_imports=script.calls.kept_imports,
    )
    return EditedScript(module, script.source.render(module), tuple(_lost_comments(script, module)))


def _lost_comments(context: Workspace, rewritten: cst.Module) -> Iterator[Note]:
    """Yield a note for each comment of the script that the rewritten form lacks."""
    comments = context.all_of(cst.Comment)
    if not comments:
        return
    kept = Counter(comment.value for comment in nodes_of(rewritten, cst.Comment))
    for comment in comments:
        if kept[comment.value]:
            kept[comment.value] -= 1
            continue
        position = context.position(comment)
        message = f"removed with the code that it is about: {comment.value}"
        yield Note(position.line, position.column + 1, "comments", message)


def impossible(plan: Plan) -> Iterator[tuple[Edit | Wrap, str]]:
    """Yield the edits of a plan that cannot be made, and why."""
    claimed = list(claims(plan.edits))
    yield from claimed
    if not claimed and _failure(plan, plan.edits):
        yield from culprits(plan.edits, lambda edits: _failure(plan, edits))


def _failure(plan: Plan, edits: Sequence[Edit | Wrap]) -> str:
    """Return why `edits` of a plan cannot be made. Nothing if they can."""
    if not edits:
        return ""
    source = plan.context.source
    try:
        require_python(applied(replace(plan, edits=tuple(edits))).data, source.path)
    except NotPythonError as error:
        if _is_newer_python(source):
            return ""  # the next turn tests whether it parses
        return f"the result does not parse ({error.what.removeprefix(f'{source.path}:')})"
    except (MigrateError, RecursionError):
        raise
    except Exception as error:
        return f"the edit failed ({type(error).__name__}: {error})".splitlines()[0]
    return ""


def _is_newer_python(source: Source) -> bool:
    """Whether the script needs a newer Python than the one that runs this program."""
    try:
        require_python(source.data, source.path)
    except NotPythonError:
        return True
    return False


def notes_on(plan: Plan, items: Sequence[Edit | Wrap | RuleFinding]) -> tuple[Note, ...]:
    """Return a note for each edit or finding of a plan, with its line and column."""
    notes = []
    for item in items:
        position = plan.context.position(item.node)
        note = Note(position.line, position.column + 1, item.rule, item.message)
        if isinstance(item, RuleFinding):
            note = replace(
                note,
                severity=item.severity,
                own_code=item.code,
                subject=item.subject,
                is_hint=item.is_hint,
            )
        elif isinstance(item, Edit):
            wrong = Wrong(item.wrong, item.severity)
            if wrong == Wrong():
                wrong = wrong_by_catalogue(item, plan.context)
            note = replace(
                note,
                wrong=wrong.message,
                unedited=wrong.severity,
                own_code=item.code,
                subject=wrong.subject,
            )
        else:
            note = replace(note, wrong=item.wrong)
        notes.append(note)
    return tuple(notes)


def in_order(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Return notes in the order of their lines."""
    return tuple(sorted(notes, key=lambda note: (note.line, note.column)))
