"""Tests for a GPU, `torch.cuda.is_available()`: code that depends on the result."""

from __future__ import annotations

import libcst as cst

from migrate.catalogue.entry import names
from migrate.catalogue.torch_cuda import AVAILABLE, COUNTS
from migrate.check.only_cuda import goes_well, guards_cuda_only, only_with_cuda
from migrate.reading.facts import Facts
from migrate.reading.replicas.for_cuda import lists_of_gpus
from migrate.syntax.tree import code

COUNTED = names(*COUNTS)
ASKED = names(*AVAILABLE)
INERT = "finds no GPU on a TPU host; what depends on it here is not needed on a TPU"


def asks_for_gpus(name: str | None) -> bool:
    """Whether the function `name` returns the number of GPUs, or whether there is one."""
    return name in COUNTED or name in ASKED


def is_inert(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether the code that depends on a test for a GPU is not needed on a TPU: seeds, waits, memory figures.

    Args:
        node: the called function, `torch.cuda.is_available`.
        facts: the script.
    """
    counts = facts.names.of(node) in COUNTED
    inert = guards_cuda_only(node, facts) if counts else goes_well(node, facts)
    inert = inert or only_with_cuda(node, facts) or _skips(node, facts)
    return inert and not _decides_about_workers(node, facts)


def _decides_about_workers(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` counts the GPUs for workers, or decides whether a list of them exists."""
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.If | cst.IfExp):
            return bool(lists_of_gpus(above.body, facts.context))
        if isinstance(above, cst.FunctionDef):
            return False
    return False


def _skips(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether the result only skips a test (`@unittest.skipIf`), or is one of several numbers in `max`."""
    call = facts.context.parent(node)
    assign = facts.context.parent(call)
    if any(isinstance(above, cst.Decorator) for above in facts.context.ancestors(node)):
        return True
    if not isinstance(assign, cst.Assign) or not isinstance(assign.targets[0].target, cst.Name):
        return False
    name = assign.targets[0].target
    around = facts.context.function_around(node)
    uses = [
        mention
        for mention in facts.context.references(name.value)
        if mention is not name and facts.context.function_around(mention) is around
    ]
    return bool(uses) and all(_in_max(mention, facts) for mention in uses)


def _in_max(name: cst.Name, facts: Facts) -> bool:
    arg = facts.context.parent(name)
    call = facts.context.parent(arg)
    return isinstance(arg, cst.Arg) and isinstance(call, cst.Call) and code(call.func) == "max"
