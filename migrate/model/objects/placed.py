"""Models that are on the accelerator when DistributedDataParallel wraps them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from migrate.catalogue.launchers import DDP
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.kinds import External
from migrate.model.calls.scopes import ModuleScope
from migrate.model.objects.objects import end, objects_of


def placed_models(analysis: Analysis, top: ModuleScope) -> Iterator[ast.Call]:
    """Yield the calls in a file that wrap a model which an accelerator holds: `DDP(Net(device="cuda"))`.

    The model is made there, or moved by the project on its way to the call, in any file.
    """
    if b"DistributedDataParallel" not in top.module.data:
        return
    for call, scope in analysis.calls_in(top):
        values = analysis.evaluator.values(call.func, scope)
        if not any(isinstance(value, External) and value.name in DDP for value in values):
            continue
        named = [keyword.value for keyword in call.keywords if keyword.arg == "module"]
        model = next(iter((*call.args[:1], *named)), None)
        if model is not None and objects_of(analysis).origin(model, scope, (), end(call)).moved:
            yield call
