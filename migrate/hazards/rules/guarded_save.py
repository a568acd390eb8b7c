"""Saves that only one replica runs."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.hazards.common import method
from migrate.hazards.facts import Facts
from migrate.hazards.hazard import Hazard, Hit, Severity, example

SAVES = frozenset(
    {"torch.save", "torch_xla.core.xla_model.save", "torch_xla.utils.serialization.save"}
)


class GuardedSave(Hazard):
    """A save runs in one replica only.

    **Why.** Saving reads the weights, and reading them runs the graph that is pending: in one replica. Where
    that graph holds a collective the others never meet it, and all hang. `xm.save` itself meets the other
    replicas in a rendezvous.

    **What to do.** Call `xm.save(obj, path, global_master=True)` in every replica, outside of the condition:
    it writes in one. `shims.save` does so too.

    Source: torch_xla 2.9, `core/xla_model.py`; pytorch/xla#2712, #2224, #4571.
    """

    code = "XLA301"
    name = "guarded-save"
    severity = Severity.ERROR
    spoken_by = ("save",)
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch
            import torch.distributed as dist


            def finish(model, rank):
                if rank == 0:
                    torch.save(model.state_dict(), "model.pt")  # XLA301


            def finish_early(model):
                if dist.get_rank() != 0:
                    return
                torch.save(model.state_dict(), "model.pt")  # XLA301


            def save(state, path):
                torch.save(state, path)


            def end(model, is_main_process):
                if is_main_process():
                    save(model, "model.pt")  # XLA301
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist
            import torch_xla.core.xla_model as xm


            def finish(model, epoch, local_rank):
                xm.save(model.state_dict(), "model.pt", global_master=True)
                if epoch == 0 or local_rank == -1:
                    torch.save(model.state_dict(), "model.pt")
                if dist.get_rank() == 0:
                    print("saved")
            """
        ),
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one save under a condition of the rank."""
        assert isinstance(node, cst.Call)
        if not self._saves(node, facts):
            return
        guard = facts.guards.around(node)
        if guard is not None:
            line = facts.context.position(guard).line
            message = f"a save in some replicas only (line {line}): xm.save in all, outside of it"
            yield self.hit(node, message)

    def _saves(self, node: cst.Call, facts: Facts) -> bool:
        if facts.names.of(node.func) in SAVES:
            return True
        callee = facts.bindings.callee(node)
        if callee is None or "save" not in callee.name.value or method(node):
            return False
        inside = (call for call in facts.calls if facts.names.of(call.func) in SAVES)
        return any(facts.context.function_around(call) is callee for call in inside)
