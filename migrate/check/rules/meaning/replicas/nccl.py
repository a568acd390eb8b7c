"""The NCCL backend."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import keyword, string_value

GROUPS = frozenset({"torch.distributed.init_process_group", "torch.distributed.new_group"})


class Nccl(Hazard):
    """The process group is one of NCCL.

    **Why.** There is no NCCL without CUDA: it raises.

    **What to do.** `dist.init_process_group("xla", init_method="xla://")`, in the launched function;
    `migrate rewrite` does it.
    """

    code = "XLA823"
    name = "nccl"
    severity = Severity.ERROR
    spoken_by = ("init-process-group",)
    nodes = (cst.Call,)
    words = "nccl"
    examples = (
        example(
            """
            import torch.distributed as dist

            dist.init_process_group("nccl")  # XLA823
            dist.init_process_group(backend="cuda:nccl,cpu:gloo")  # XLA823
            """
        ),
        example(
            """
            import torch.distributed as dist

            dist.init_process_group("xla", init_method="xla://")
            dist.new_group(backend="gloo")
            """
        ),
    )
    mended = example(
        """
        import torch.distributed as dist
        import torch_xla.distributed.xla_backend

        dist.init_process_group("xla", init_method="xla://")
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one group."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func) or ""
        if name not in GROUPS:
            return
        arg = keyword(node, "backend")
        if arg is None and name.endswith("init_process_group") and node.args:
            arg = node.args[0]
        if arg is not None and "nccl" in (string_value(arg.value) or ""):
            yield self.hit(node, 'there is no NCCL on a TPU: "xla", init_method="xla://"')
