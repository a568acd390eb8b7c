"""Find the hazards of one script, in one visit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import libcst as cst

from migrate.check.config import Config
from migrate.check.finding import UNREADABLE, UNUSED_IGNORE, Finding
from migrate.check.hazard import Hazard, Hit, Severity
from migrate.check.ignores import ignores, silenced
from migrate.check.prescan import may_hold_hazards
from migrate.check.rules import all_hazards
from migrate.errors import MigrateError
from migrate.reading.calls.facts import ModuleCalls
from migrate.reading.facts import Facts
from migrate.reading.notebook.text import (
    SUFFIX,
    InvalidNotebookError,
    NoCodeError,
    parse_notebook,
)
from migrate.reading.project.entries import Entry
from migrate.reading.script import Script
from migrate.reading.tree.source import (
    NotPythonError,
    NotUtf8Error,
    Source,
    UnreadableScriptError,
    parse,
)


@dataclass(frozen=True)
class Known:
    """What is known of a file by its project.

    Args:
        calls: what its calls run.
        entries: the functions, by the lines of their `def`, that steps of other files run.
        whole: whether all hazards are reported, not only those in these functions.
    """

    calls: ModuleCalls | None = None
    entries: Mapping[int, Entry] = field(default_factory=dict)
    whole: bool = True


def check_file(path: Path, config: Config, known: Known | None = None) -> tuple[Finding, ...]:
    """Return the hazards of the file at `path`; none, and no parsing, where it names nothing of ours.

    A file that is not Python 3 is a finding too: it runs nowhere.

    Raises:
        UnreadableScriptError: the file cannot be read.
    """
    known = known or Known()
    try:
        data = path.read_bytes()
    except OSError as error:
        what = f"{path}: {(error.strerror or str(error)).lower()}"
        raise UnreadableScriptError(what, "check the path and its permissions") from None
    if not known.entries and not may_hold_hazards(data):
        return ()
    if path.suffix == SUFFIX:
        return _check_notebook(data, path, config, known)
    try:
        source = parse(data, path)
    except (NotPythonError, NotUtf8Error) as error:
        shown = known.whole and config.selects(UNREADABLE)
        return _unreadable(path, error) if shown else ()
    return check_source(source, config, known)


def _check_notebook(data: bytes, path: Path, config: Config, known: Known) -> tuple[Finding, ...]:
    from migrate.check.notebook import check_notebook

    try:
        notebook = parse_notebook(data, path)
    except NoCodeError:
        return ()  # a page of text
    except (InvalidNotebookError, NotUtf8Error) as error:
        return _unreadable(path, error) if config.selects(UNREADABLE) else ()
    return check_notebook(notebook, config, known.calls)


def check_source(source: Source, config: Config, known: Known | None = None) -> tuple[Finding, ...]:
    """Return the hazards of a script, in the order of its lines.

    Args:
        source: the script.
        config: what is reported.
        known: what is known of it by its project; where that is not given, the local modules that it
            imports are read, and who calls it is not known.
    """
    known = known or Known()
    return check_facts(Facts(Script(source, known.calls), known.entries), config, known.whole)


def check_context(context: Script, config: Config) -> tuple[Finding, ...]:
    """Return the hazards of a script of which a context is there already."""
    return check_facts(Facts(context), config)


def check_facts(facts: Facts, config: Config, whole: bool = True) -> tuple[Finding, ...]:
    """Return the hazards of a script; unless `whole`, those in functions that other files' steps run."""
    hazards = [hazard for hazard in all_hazards() if config.selects(hazard.code)]
    context = facts.context
    comments = ignores(context)
    path = context.source.path
    found = []
    for hazard, hit in hits(facts, hazards):
        origin = facts.steps.origin(hit.node) if facts.entries else ""
        start = context.position(hit.node)
        if id(hit.node) in context.for_cuda:
            continue  # a script for shims leaves this to a run on CUDA
        if not (whole or origin) or silenced(hazard.code, (start.line,), comments):
            continue
        severity = config.severity(hazard.code, hit.severity)
        one = _finding(path, context, hit, hazard.code, hazard.name, severity)
        found.append(
            replace(one, message=f"{one.message} (called from {origin})") if origin else one
        )
    if whole and config.selects(UNUSED_IGNORE):
        for ignore in comments.values():
            if ignore.unused is not None:
                severity = config.severity(UNUSED_IGNORE, Severity.INFO)
                message = f"{ignore.unused}: remove the comment"
                hit = Hit(ignore.comment, message, severity)
                name = "unused-ignore"
                found.append(_finding(path, context, hit, UNUSED_IGNORE, name, severity))
    return tuple(sorted(found, key=lambda one: (one.line, one.column, one.code)))


def hits(facts: Facts, hazards: Iterable[Hazard]) -> Iterator[tuple[Hazard, Hit]]:
    """Yield what `hazards` find, each place once."""
    by_type: dict[type[cst.CSTNode], list[Hazard]] = defaultdict(list)
    for hazard in hazards:
        for kind in hazard.nodes:
            by_type[kind].append(hazard)
    seen: set[tuple[str, int, int]] = set()
    for node in facts.context.nodes:
        if id(node) in facts.context.for_cuda:
            continue
        for hazard in by_type.get(type(node), ()):
            for hit in hazard.find(node, facts):
                start = facts.context.position(hit.node)
                place = (hazard.code, start.line, start.column)
                if place not in seen:
                    seen.add(place)
                    yield hazard, hit


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
    )


def _unreadable(path: Path, error: MigrateError) -> tuple[Finding, ...]:
    line, column, message = 1, 1, error.what.removeprefix(f"{path}:").strip()
    parts = message.split(":", 2)
    if len(parts) == 3 and parts[0].isdigit() and parts[1].isdigit():
        line, column, message = int(parts[0]), int(parts[1]), parts[2].strip()
    text = f"{message}: nothing in this file is checked"
    name = "not-python"
    return (Finding(path, line, column, line, column + 1, UNREADABLE, name, Severity.ERROR, text),)
