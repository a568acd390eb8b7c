"""A model that only one replica runs."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.hazards.entries import Kind
from migrate.hazards.facts import Facts
from migrate.hazards.hazard import Hazard, Hit, Severity, example

WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")


class GuardedForward(Hazard):
    """The wrapped model runs in one replica only.

    **Why.** The forward of DistributedDataParallel synchronises buffers: a collective that the others never
    come to. On XLA the replicas also run different graphs, so that a later collective may hang.

    **What to do.** Evaluate in every replica, each on its part, and reduce; or call the unwrapped
    `model.module` under the condition and sync after it.
    """

    code = "XLA304"
    name = "guarded-forward"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def train(model, rank, x):
                model = DDP(model)
                if rank == 0:
                    print(model(x))  # XLA304
            """
        ),
        example(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def train(net, rank, x):
                model = DDP(net)
                out = model(x)
                if rank == 0:
                    print(out, model.module(x), model.state_dict())
            """
        ),
    )
    mended = example(
        """
        import torch
        from torch.nn.parallel import DistributedDataParallel as DDP


        def train(model, rank, x):
            model = DDP(model)
            out = model(x)
            if rank == 0:
                print(out)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one forward under a condition of the rank."""
        assert isinstance(node, cst.Call)
        if not isinstance(node.func, cst.Name) or facts.tensors.kind(node.func) is not Kind.MODEL:
            return
        wrapped = self._is_wrapped(node.func, facts)
        if wrapped and (guard := facts.guards.around(node)) is not None:
            line = facts.context.position(guard).line
            message = (
                f"the wrapped model runs in some replicas only (line {line}): model.module, or all"
            )
            yield self.hit(node, message)

    def _is_wrapped(self, name: cst.Name, facts: Facts) -> bool:
        """Whether an assignment in the function wraps the model."""
        around = facts.bindings.owner(name)
        return any(
            isinstance(binding.value, cst.Call)
            and (facts.names.of(binding.value.func) or "").endswith(WRAPPERS)
            for binding in facts.bindings.names.get((id(around), name.value), ())
        )
