"""`torch.cuda.is_available()`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import libcst as cst

from migrate.catalogue.entry import names
from migrate.catalogue.torch_cuda import AVAILABLE, COUNTS
from migrate.check.common import NamedHazard
from migrate.check.hazard import Hit, Severity, example
from migrate.check.only_cuda import goes_well, guards_cuda_only, only_with_cuda
from migrate.reading.facts import Facts
from migrate.reading.replicas.for_cuda import lists_of_gpus
from migrate.syntax.tree import code, nodes_of

COUNTED = names(*COUNTS)
ASKED = names(*AVAILABLE)
INERT = "finds no GPU on a TPU host; what depends on it here is not needed on a TPU"


class CudaAvailable(NamedHazard):
    """`torch.cuda.is_available()` is False on a TPU.

    **Why.** `"cuda" if torch.cuda.is_available() else "cpu"` trains on the CPU of the TPU host, without a
    word.

    Where only seeds, waits or figures of the memory depend on it, or nothing that a TPU needs, this is
    information.

    **What to do.** `torch_xla.device()`; `migrate rewrite` does it.
    """

    code = "XLA704"
    name = "cuda-available"
    severity = Severity.WARNING
    examples = (
        example(
            """
            import torch

            device = "cuda" if torch.cuda.is_available() else "cpu"  # XLA704
            other = "cuda" if torch.accelerator.is_available() else "cpu"  # XLA704
            """
        ),
        example(
            """
            import torch

            first = "cuda:0" if torch.cuda.is_available() else "cpu"  # XLA704
            device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")  # XLA704
            found = torch.cuda.is_available() and torch.cuda.device_count() > 0  # XLA704
            many = torch.cuda.is_available() and torch.cuda.device_count() > 1  # XLA704
            model = torch.nn.Linear(2, 2)
            if torch.cuda.is_available():  # XLA704
                model.cuda()
            else:
                model.to("cpu")
            """
        ),
        example(
            """
            import torch


            def seed(number):
                torch.manual_seed(number)
                if torch.cuda.is_available():  # XLA704 info
                    torch.cuda.manual_seed_all(number)
                workers = torch.cuda.device_count()  # XLA704 info
                print(max(workers, 1))
                if torch.cuda.device_count() > 1:  # XLA704
                    return torch.cuda.device_count()  # XLA704 info
            """
        ),
        example(
            """
            import torch

            device = "mps" if torch.backends.mps.is_available() else "cpu"
            """
        ),
        example(
            """
            import torch
            from torch.utils.data import DataLoader


            def make(model, data):
                loader = DataLoader(data, pin_memory=torch.cuda.is_available())  # XLA704 info
                settings = {"fused": torch.cuda.is_available()}  # XLA704 info
                return loader, torch.optim.AdamW(model.parameters(), **settings)
            """
        ),
    )
    mended = example(
        """
        import torch_xla

        device = torch_xla.device()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one question; information where only calls of torch.cuda depend on it."""
        above = facts.context.parent(node)
        if not isinstance(above, cst.Call) or above.func is not node:
            return
        counts = facts.names.of(node) in COUNTED
        if counts and _is_asked_before(above, facts):
            return  # the question before it says it
        for hit in super().find(node, facts):
            inert = guards_cuda_only(node, facts) if counts else goes_well(node, facts)
            inert = inert or only_with_cuda(node, facts) or _skips(node, facts)
            if inert and not _decides_about_workers(node, facts):
                message = f"{facts.names.of(node)}: {INERT}"
                hit = replace(hit, severity=Severity.INFO, message=message)
            yield hit


def _is_asked_before(count: cst.Call, facts: Facts) -> bool:
    """Whether a count of GPUs is compared right of the question for one: `is_available() and … > 0`."""
    compared = facts.context.parent(count)
    both = facts.context.parent(compared)
    if not isinstance(compared, cst.Comparison) or not isinstance(both, cst.BooleanOperation):
        return False
    asked = [facts.names.of(call.func) for call in nodes_of(both.left, cst.Call)]
    return both.right is compared and any(name in ASKED for name in asked)


def _decides_about_workers(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` counts the GPUs that workers are given, or decides whether there is such a list."""
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.If | cst.IfExp):
            return bool(lists_of_gpus(above.body, facts.context))
        if isinstance(above, cst.FunctionDef):
            return False
    return False


def _skips(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether the answer decides about a test (`@unittest.skipIf`), or is one of several numbers in `max`."""
    call = facts.context.parent(node)
    assign = facts.context.parent(call)
    if any(isinstance(above, cst.Decorator) for above in facts.context.ancestors(node)):
        return True
    if not isinstance(assign, cst.Assign) or not isinstance(assign.targets[0].target, cst.Name):
        return False
    name = assign.targets[0].target
    around = facts.context.function_around(node)
    uses = [
        one
        for one in facts.context.references(name.value)
        if one is not name and facts.context.function_around(one) is around
    ]
    return bool(uses) and all(_in_max(one, facts) for one in uses)


def _in_max(name: cst.Name, facts: Facts) -> bool:
    arg = facts.context.parent(name)
    call = facts.context.parent(arg)
    return isinstance(arg, cst.Arg) and isinstance(call, cst.Call) and code(call.func) == "max"
