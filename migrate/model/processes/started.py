"""Programs that train with several processes, without code that starts these."""

from __future__ import annotations

from collections.abc import Iterator

from migrate.catalogue import libraries, torch_distributed, torch_other
from migrate.catalogue.entry import names
from migrate.catalogue.launchers import DDP, LAUNCHERS, SUBMITTERS
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.kinds import External
from migrate.model.calls.scopes import ModuleScope, Region
from migrate.model.objects.programs import programs_of
from migrate.model.processes.one_by_one import starting_replicas

MEANS_SEVERAL = torch_distributed.JOINS | DDP | names(*torch_other.SAMPLERS)
ASKS_FOR_GROUP = "torch.distributed.is_initialized"
# Calls that start the replicas, or pass the script to a starter.
BY_OTHERS = names(*libraries.LAUNCHERS) | SUBMITTERS


def is_distributed_training(analysis: Analysis, top: ModuleScope) -> bool:
    """Whether running a file trains on an accelerator, for several processes that it does not start."""
    if not any(_trains(analysis, region) for region in (top.guard, top.region)):
        return False
    reached = analysis.reached_from(top.module.path)
    loops = reached & analysis.step_loops
    called = set(_called(analysis, reached))
    if called.isdisjoint(MEANS_SEVERAL) or not called.isdisjoint(LAUNCHERS):
        return False
    if ASKS_FOR_GROUP in called and not any(map(_may_join, called)):
        return False  # one process: nothing that it runs joins the group for which it asks
    starting = {id(call) for calls in starting_replicas(analysis).values() for call in calls}
    if starting and any(id(call) in starting for region in reached for call, _ in region.calls):
        return False
    if not BY_OTHERS.isdisjoint(name.split(".")[0] for name in called):
        return False
    return any(
        programs_of(analysis).on_accelerator(scope, region)
        for at in analysis.scopes.values()
        for scope in (at, *at.functions)
        for root in scope.roots
        for region in analysis.regions(root)
        if region in loops
    )


def _may_join(name: str) -> bool:
    """Whether the function `name` of a library joins a process group, or makes one: `init_distributed`."""
    last = name.rpartition(".")[2]
    return (
        name in torch_distributed.JOINS
        or last in ("DeviceMesh", "fully_shard")
        or ("init" in last and ("dist" in last or "process" in last) and last != "is_initialized")
    )


def _trains(analysis: Analysis, root: Region) -> bool:
    """Whether a loop of a body trains, or a loop of a function that it calls."""
    training = programs_of(analysis).training
    return any(
        region in analysis.step_loops
        or any(
            not training.isdisjoint(analysis.running[call].functions) for call, _ in region.calls
        )
        for region in analysis.regions(root)
    )


def _called(analysis: Analysis, regions: set[Region]) -> Iterator[str]:
    for region in regions:
        for call, scope in region.calls:
            for value in analysis.evaluator.values(call.func, scope):
                if isinstance(value, External):
                    yield value.name
