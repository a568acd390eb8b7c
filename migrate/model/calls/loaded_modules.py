"""Calls that return a module from outside of the project: `lazy_torch()`, `import_module("torch")`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from migrate.model.calls.analysis import Analysis
from migrate.model.calls.kinds import UNKNOWN, External
from migrate.model.calls.scopes import ModuleScope

# Modules with a dot in their names; any other dotted name may be a class or a function.
DOTTED = frozenset(
    f"torch.{name}"
    for name in (
        "amp",
        "cuda",
        "cuda.amp",
        "distributed",
        "multiprocessing",
        "nn",
        "nn.functional",
        "nn.parallel",
        "optim",
    )
)
MOST_ARGUMENTS = 2  # `import_module(name, package)`


def loaded_modules(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls of a file that return one module and nothing else, with its name.

    A function of the project that imports where it runs, so that the program starts fast, is an example.
    """
    for call, scope in analysis.calls_in(top):
        if call.keywords or len(call.args) > MOST_ARGUMENTS:
            continue
        values = analysis.evaluator.values(call, scope) - {UNKNOWN}
        names = {value.name for value in values if isinstance(value, External)}
        if len(names) == len(values) == 1:
            name = names.pop()
            if "." not in name or name in DOTTED:
                yield call, name
