"""Loops over an unpadded share of data in which all replicas meet in every turn.

A replica with a longer share waits forever in its last turn. If the last batches have different sizes, the
replicas run different graphs with a collective in them, which on XLA wait for each other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from migrate.model.calls.rank_tests import last_part, parents
from migrate.model.objects.programs import programs_of
from migrate.model.processes.acting import meets, runs_meeting
from migrate.model.replicated.divisions import Divisions, may_divide

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis
    from migrate.model.calls.scopes import Region, Scope
    from migrate.model.replicated.shares import Share

# Without one of these words no training step averages gradients over the replicas.
AVERAGES = re.compile(
    rb"DistributedDataParallel|FullyShardedDataParallel|\bfully_shard\b|\boptimizer_step\(|shims"
)
# Contexts in which a replica without data answers the collectives of the others.
JOINS = frozenset({"Join", "join"})
GRADIENTS = "the average of the gradients"


@dataclass(frozen=True)
class UnevenTurns:
    """Loop over an unpadded share that meets in every turn.

    Args:
        share: the division.
        meeting: the collective or step in which the replicas meet, as written in the script.
        line: the line of the loop.
        path: its file.
    """

    share: Share
    meeting: str
    line: int
    path: Path


@lru_cache(maxsize=2)
def uneven_turns(analysis: Analysis) -> Mapping[Path, Mapping[ast.expr, UnevenTurns]]:
    """Return the divisions of each file of a project, with a loop over the share that meets in every turn."""
    if not any(may_divide(scope.module) for scope in analysis.scopes.values()):
        return {}
    divisions = Divisions(analysis)
    uneven: dict[Path, dict[ast.expr, UnevenTurns]] = {}
    for scope, region in _loops(analysis):
        assert isinstance(region.loop, ast.For)
        averages = _averages_in(region, analysis)
        meetings = [] if averages else _meetings(region, analysis)
        if not (averages or meetings) or _is_joined(region.loop, scope):
            continue
        share = divisions.of(region.loop.iter, scope)
        if share is None or share.node is None:
            continue
        counter = _counter(region.loop)
        meetings = [
            call
            for call in meetings
            if share.batched
            or not any(
                divisions.is_in_all_shares(test, counter, share.node, scope)
                for test in _tests_between(call, region.loop, scope)
            )
        ]
        if not (averages or meetings):
            continue
        meeting = GRADIENTS if averages else f"`{ast.unparse(meetings[0].func)}`"
        turns = UnevenTurns(share, meeting, region.loop.lineno, scope.module.path)
        of_file = uneven.setdefault(divisions.files[share.node].module.path, {})
        known = of_file.get(share.node)
        if known is None or (known.share.drops and not share.drops):
            of_file[share.node] = turns
    return uneven


def _loops(analysis: Analysis) -> Iterator[tuple[Scope, Region]]:
    for top in analysis.scopes.values():
        for scope in (top, *top.functions):
            for root in scope.roots:
                for region in analysis.regions(root):
                    if isinstance(region.loop, ast.For):
                        yield scope, region


def _averages_in(loop: Region, analysis: Analysis) -> bool:
    """Whether the turns of a loop average gradients over the replicas."""
    if not _averages(analysis):
        return False
    training = programs_of(analysis).training
    return any(
        region in analysis.step_loops
        or any(
            not training.isdisjoint(analysis.running[call].functions) for call, _ in region.calls
        )
        for region in analysis.regions(loop)
    )


def _meetings(loop: Region, analysis: Analysis) -> list[ast.Call]:
    """Return the calls in the turns of a loop in which all replicas meet, in the order of their lines."""
    collectives = [
        call
        for region in analysis.regions(loop)
        for call, at in region.calls
        if meets(call, at, analysis) or runs_meeting(call, at, analysis)
    ]
    return sorted(collectives, key=lambda call: call.lineno)


def _counter(loop: ast.For) -> str:
    """Return the name of a loop's counter: `i` of `for i, x in enumerate(data)`; empty if there is none."""
    match loop:
        case ast.For(
            target=ast.Tuple(elts=[ast.Name(id=name), *_]),
            iter=ast.Call(func=ast.Name(id="enumerate"), args=[_], keywords=[]),
        ):
            return name
    return ""


def _tests_between(call: ast.Call, loop: ast.For, scope: Scope) -> Iterator[ast.expr]:
    """Yield the conditions inside of `loop` that hold where `call` runs, without `and`."""
    above = parents(scope.module)
    below: ast.AST = call
    node = above.get(call)
    while node is not None and node is not loop:
        if isinstance(node, ast.If) and below in node.body:
            match node.test:
                case ast.BoolOp(op=ast.And(), values=values):
                    yield from values
                case test:
                    yield test
        below, node = node, above.get(node)


@lru_cache(maxsize=2)
def _averages(analysis: Analysis) -> bool:
    """Whether a training step of the project may average gradients over the replicas."""
    return any(AVERAGES.search(scope.module.data) for scope in analysis.scopes.values())


def _is_joined(loop: ast.For, scope: Scope) -> bool:
    """Whether a context around the loop lets replicas end at different turns: `with Join([model]):`."""
    above = parents(scope.module)
    node = above.get(loop)
    while node is not None and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if isinstance(node, ast.With) and any(
            isinstance(item.context_expr, ast.Call) and last_part(item.context_expr.func) in JOINS
            for item in node.items
        ):
            return True
        node = above.get(node)
    return False
