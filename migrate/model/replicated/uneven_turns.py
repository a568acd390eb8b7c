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
        meeting = _meeting(region, analysis)
        if not meeting or _is_joined(region.loop, scope):
            continue
        share = divisions.of(region.loop.iter, scope)
        if share is None or share.node is None:
            continue
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


def _meeting(loop: Region, analysis: Analysis) -> str:
    """Return the code in which all replicas meet in each turn of a loop; empty if they do not."""
    training = programs_of(analysis).training
    averages = _averages(analysis)
    collectives = []
    for region in analysis.regions(loop):
        if averages and region in analysis.step_loops:
            return GRADIENTS
        for call, at in region.calls:
            functions = analysis.running[call].functions
            if averages and not training.isdisjoint(functions):
                return GRADIENTS
            if meets(call, at, analysis) or runs_meeting(call, at, analysis):
                collectives.append(call)
    if not collectives:
        return ""
    first = min(collectives, key=lambda call: call.lineno)
    return f"`{ast.unparse(first.func)}`"


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
