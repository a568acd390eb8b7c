"""Find the hazards of one script, in one visit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

import libcst as cst

from migrate.catalogue.prescan import concerned
from migrate.catalogue.target import XLA, in_words
from migrate.check.config import Config
from migrate.check.finding import UNUSED_IGNORE, Finding
from migrate.check.hazard import Hazard, Hit, Severity
from migrate.check.ignores import ignores, silenced
from migrate.check.rules import all_hazards
from migrate.model.facts import ModuleCalls
from migrate.reading.facts import Facts, facts_of
from migrate.reading.names.dead_branches import never_runs
from migrate.reading.names.quoted import quoted
from migrate.reading.project.workers import kept, let_go
from migrate.reading.script import Script
from migrate.reading.values.entries import StepFunction
from migrate.syntax.source import Source, parse
from migrate.syntax.tree import nodes

NAMES = frozenset({cst.Name, cst.Attribute})


@dataclass(frozen=True)
class ProjectFacts:
    """Facts about a file from its project.

    Args:
        calls: the functions that its calls run.
        entries: the functions that steps of other files run, by the lines of their `def`.
        whole: whether all hazards are reported, not only hazards in these functions.
    """

    calls: ModuleCalls | None = None
    entries: Mapping[int, StepFunction] = field(default_factory=dict)
    whole: bool = True


def check_script(
    path: Path, data: bytes, config: Config, known: ProjectFacts
) -> tuple[Finding, ...]:
    """Return the hazards of the script at `path`, in the order of its lines.

    Args:
        path, data: the file, and its content.
        config: which hazards are reported.
        known: facts about the file from its project.

    Raises:
        NotUtf8Error, NotPythonError: the content is not Python 3.
    """
    script = kept(path, data) or Script(parse(data, path), known.calls)
    findings = check_facts(Facts(script, known.entries), config, known.whole)
    let_go(script)
    # The result may be kept under another name.
    return tuple(replace(finding, path=path) for finding in findings)


def check_source(
    source: Source, config: Config, known: ProjectFacts | None = None
) -> tuple[Finding, ...]:
    """Return the hazards of a script, in the order of its lines.

    Args:
        source: the script.
        config: which hazards are reported.
        known: facts about the script from its project. None: the local modules that it imports are read,
            and its callers are unknown.
    """
    known = known or ProjectFacts()
    return check_facts(Facts(Script(source, known.calls), known.entries), config, known.whole)


def check_context(context: Script, config: Config) -> tuple[Finding, ...]:
    """Return the hazards of a script that is already parsed."""
    return check_facts(facts_of(context), config)


def check_facts(facts: Facts, config: Config, whole: bool = True) -> tuple[Finding, ...]:
    """Return the hazards of a script.

    Unless `whole`: only in functions that steps of other files run, and in functions that make batches.
    """
    hazards = [
        hazard
        for hazard in all_hazards()
        if config.target in hazard.targets and config.selects(hazard.code)
    ]
    facts = facts.on(config.target)
    context = facts.context
    comments = ignores(context)
    path = context.source.path
    findings = []
    doubtful: list[tuple[Finding, str]] = []  # with the code that is more specific on its line
    batches = frozenset() if whole else _in_batch_functions(facts)
    entered = None if whole else facts.steps.entered | batches
    for hazard, hit in hits(facts, hazards, entered):
        origin = facts.steps.origin(hit.node) if facts.entries else ""
        start = context.position(hit.node)
        if id(hit.node) in context.for_cuda:
            continue  # a script that uses shims runs this code on CUDA only
        again = facts.steps.knows_more and facts.steps.inside(hit.node)
        ran = whole or origin or again or id(hit.node) in batches
        if not ran or silenced(hazard.code, (start.line,), comments):
            continue
        idle = never_runs(hit.node, context)
        if idle == "":
            continue
        if idle and not hazard.of_idle_code:
            message = f"{hit.message} (never runs as long as {idle})"
            hit = replace(hit, message=message, severity=Severity.INFO)
        severity = config.severity(hazard.code, hit.severity)
        finding = _finding(path, context, hit, hazard.code, hazard.name, severity)
        if origin:
            finding = replace(finding, caller=origin)
        if hit.unless:
            doubtful.append((finding, hit.unless))
        else:
            findings.append(finding)
    said = {(finding.line, finding.code) for finding in findings}
    findings += [finding for finding, unless in doubtful if (finding.line, unless) not in said]
    if whole and config.selects(UNUSED_IGNORE):
        for ignore in comments.values():
            if ignore.unused is not None:
                severity = config.severity(UNUSED_IGNORE, Severity.INFO)
                message = f"{ignore.unused}: remove the comment"
                hit = Hit(ignore.comment, message, severity)
                name = "unused-ignore"
                findings.append(_finding(path, context, hit, UNUSED_IGNORE, name, severity))
    return tuple(sorted(findings, key=lambda finding: (finding.line, finding.column, finding.code)))


def _in_batch_functions(facts: Facts) -> frozenset[int]:
    """Return the ids of the nodes in functions that a loader runs for each batch: `collate_fn`."""
    collating = facts.context.calls.collating
    return frozenset(
        id(below)
        for node in (facts.context.all_of(cst.FunctionDef) if collating else ())
        if facts.context.position(node.name).line in collating
        for below in nodes(node)
    )


def hits(
    facts: Facts, hazards: Iterable[Hazard], within: Set[int] | None = None
) -> Iterator[tuple[Hazard, Hit]]:
    """Yield the hits of `hazards`, each location once. `within`: ids of the nodes to inspect; None: all."""
    by_type: dict[type[cst.CSTNode], list[Hazard]] = defaultdict(list)
    elsewhere: dict[type[cst.CSTNode], list[Hazard]] = defaultdict(list)
    for hazard in concerned(facts.context.spelled, hazards, facts.context.calls):
        for kind in hazard.nodes:
            by_type[kind].append(hazard)
            if not (hazard.of_names and kind in NAMES):
                elsewhere[kind].append(hazard)
    seen: set[tuple[str, int, int]] = set()
    for_cuda, name_of = facts.context.for_cuda, facts.names.of
    for node in facts.context.all_of(*by_type):
        if id(node) in for_cuda or (within is not None and id(node) not in within):
            continue
        kind = type(node)
        named = kind in NAMES and name_of(node) is not None
        for hazard in (by_type if named else elsewhere)[kind]:
            for hit in hazard.find(node, facts):
                start = facts.context.position(hit.node)
                place = (hazard.code, start.line, start.column)
                if place not in seen:
                    seen.add(place)
                    yield hazard, _worded(hit, hazard, facts)


def _worded(hit: Hit, hazard: Hazard, facts: Facts) -> Hit:
    """Return a hit with its message in the words of the target, unless the hazard is of this target alone."""
    if facts.target == XLA or hazard.targets == {facts.target}:
        return hit
    message = in_words(hit.message, facts.target, quoted(hit.node, facts.context))
    return replace(hit, message=message)


def _finding(
    path: Path, context: Script, hit: Hit, code: str, name: str, severity: Severity
) -> Finding:
    start = context.position(hit.node)
    first_line = context.module.code_for_node(hit.node).strip().splitlines()[0]
    return Finding(
        path,
        start.line,
        start.column + 1,
        start.line,
        start.column + 1 + len(first_line),
        code,
        name,
        severity,
        hit.message,
        is_shown=hit.is_shown,
        subject=hit.subject,
        about=tuple(context.position(node).line for node in hit.about),
    )
