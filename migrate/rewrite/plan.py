"""Find all edits and findings of a script in one visit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import libcst as cst

from migrate.catalogue.prescan import concerned
from migrate.catalogue.target import XLA, in_words
from migrate.errors import MigrateError
from migrate.reading.names.quoted import quoted
from migrate.rewrite.edits.torch_xla_import import register
from migrate.rewrite.left.remaining import remaining
from migrate.rewrite.rule import Edit, Rule, RuleFinding, Wrap
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import nodes

NAMES = frozenset({cst.Name, cst.Attribute})


@dataclass(frozen=True)
class Plan:
    """Edits and findings of all rules for a script."""

    context: Workspace
    edits: tuple[Edit | Wrap, ...]
    findings: tuple[RuleFinding, ...]

    @property
    def needs_shims(self) -> bool:
        """Whether an edit needs the library `shims`."""
        return bool(self.edits) and self.context.imports.requires("shims")


def plan(context: Workspace, rules: Sequence[Rule], *, rest: bool = True) -> Plan:
    """Return the edits and findings of `rules`.

    Unless `rest` is false, add constructs that no rule handles.
    """
    by_type: dict[type[cst.CSTNode], list[Rule]] = defaultdict(list)
    elsewhere: dict[type[cst.CSTNode], list[Rule]] = defaultdict(list)
    wanted = (rule for rule in rules if _is_wanted(rule, context))
    for rule in concerned(context.spelled, wanted, context.calls):
        for kind in rule.nodes:
            by_type[kind].append(rule)
            if not (rule.of_names and kind in NAMES):
                elsewhere[kind].append(rule)
    edits: list[Edit | Wrap] = []
    findings: list[RuleFinding] = []
    for_cuda, name_of = context.for_cuda, context.qualified_name
    for node in context.all_of(*by_type):
        if id(node) in for_cuda:
            continue
        kind = type(node)
        named = kind in NAMES and name_of(node) is not None
        for rule in (by_type if named else elsewhere)[kind]:
            for request in _asked(rule, node, context):
                if isinstance(request, RuleFinding):
                    findings.append(request)
                else:
                    edits.append(request)
    edits = _once(edits)
    edits, findings = _without_moot(edits, findings)
    if rest:
        findings.extend(remaining(context, _handled(edits, findings)))
    edits += register(edits, context)
    findings.sort(key=lambda finding: _place(finding.node, context))
    edits.sort(key=lambda edit: _place(edit.node, context))
    return Plan(context, tuple(edits), tuple(findings))


def _is_wanted(rule: Rule, context: Workspace) -> bool:
    """Whether a rule is for this kind of script, and for the options of the user."""
    defers = context.options.defer_reads or not rule.options.defer_reads
    return defers and (context.source.is_notebook or not rule.notebook)


def _asked(rule: Rule, node: cst.CSTNode, context: Workspace) -> list[Edit | Wrap | RuleFinding]:
    """Return what `rule` finds at `node`. If the rule fails, return a finding that says so."""
    try:
        requests = list(rule.find(node, context))
        # A rule of this target alone speaks in its words, and names the old ones in `"xla" → "tpu"`.
        if not requests or rule.targets == {context.target}:
            return requests
        return [_worded(request, context) for request in requests]
    except (MigrateError, RecursionError):
        raise
    except Exception as error:  # the other rules continue, and this rule at other nodes
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        message = f"the rule {rule.name} failed here ({what}): look at this line by hand"
        return [RuleFinding(rule.name, node, message)]


def _worded(request: Edit | Wrap | RuleFinding, context: Workspace) -> Edit | Wrap | RuleFinding:
    """Return a request of a rule with its messages in the words of the target."""
    if context.target == XLA:
        return request

    def worded(message: str) -> str:
        return in_words(message, context.target, quoted(request.node, context))

    if isinstance(request, Edit | Wrap):
        return replace(request, message=worded(request.message), wrong=worded(request.wrong))
    return replace(request, message=worded(request.message))


def _once(edits: Sequence[Edit | Wrap]) -> list[Edit | Wrap]:
    """Return `edits` without those that yield to another edit of the same node."""
    said: set[int] = set()
    for edit in edits:
        if isinstance(edit, Edit) and not edit.yields:
            said.add(id(edit.node))
            said.update(id(node) for subtree in edit.consumes for node in nodes(subtree))
    kept: list[Edit | Wrap] = []
    for edit in edits:
        if isinstance(edit, Edit) and edit.yields:
            if id(edit.node) in said:
                continue
            said.add(id(edit.node))
        kept.append(edit)
    return kept


def _without_moot(
    edits: Sequence[Edit | Wrap], findings: Sequence[RuleFinding]
) -> tuple[list[Edit | Wrap], list[RuleFinding]]:
    """Drop findings in code that an edit removes."""
    gone: dict[int, set[str]] = defaultdict(set)  # the rules that remove a node
    inside: set[int] = set()
    for edit in edits:
        for subtree in edit.consumes if isinstance(edit, Edit) else ():
            for node in nodes(subtree):
                gone[id(node)].add(edit.rule)
            inside.update(id(node) for node in nodes(subtree) if node is not subtree)
    places = (edit.node if isinstance(edit, Edit) else edit.block for edit in edits)
    kept = [e for e, place in zip(edits, places, strict=True) if id(place) not in inside]
    said = [
        finding for finding in findings if not gone.get(id(finding.node), set()) - {finding.rule}
    ]
    return kept, said


def _place(node: cst.CSTNode, context: Workspace) -> tuple[int, int]:
    position = context.position(node)
    return position.line, position.column


def _handled(edits: Sequence[Edit | Wrap], findings: Sequence[RuleFinding]) -> frozenset[int]:
    """Return the ids of the nodes that edits consume or that a rule's finding already names.

    A finding at a loop or a function concerns the construct itself, not the nodes in it.
    """
    spoken: set[int] = set()
    for edit in edits:
        for subtree in edit.consumes if isinstance(edit, Edit) else ():
            spoken.update(id(node) for node in nodes(subtree))
    for finding in findings:
        if isinstance(finding.node, cst.Call):
            spoken.update(id(node) for node in nodes(finding.node.func))
        elif isinstance(finding.node, cst.BaseExpression):
            spoken.update(id(node) for node in nodes(finding.node))
    return frozenset(spoken)
