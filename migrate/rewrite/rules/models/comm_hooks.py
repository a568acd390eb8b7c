"""Communication hooks of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH, UNMEASURED
from migrate.reading.values.collectives import REGISTER_HOOK
from migrate.rewrite.rule import Rule, RuleFinding, Safety, left_alone, reported
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code


class CommHooks(Rule):
    """Report communication hooks: compressed gradients save nothing on a TPU's network.

    **Why.** A hook replaces the all-reduce of DistributedDataParallel by code of its own, which has to be
    part of the graph. `fp16_compress_hook` halves what travels and loses range; powerSGD hooks decompose
    on the host.

    **Reported.** `register_comm_hook`, once with the hook that it names, and the state of a hook
    (`PowerSGDState`) where it is made: drop them.

    Source: torch 2.9's documentation of the hooks. Not measured on a TPU.
    """

    name = "comm-hooks"
    code = "XLA839"
    targets = BOTH
    safety = Safety.REPORT_ONLY
    nodes = (cst.Call,)
    words = REGISTER_HOOK
    examples = (
        left_alone(
            """
            model.register_forward_hook(None, hook)
            """
        ),
        reported(
            """
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            model.register_comm_hook(None, fp16_compress_hook)
            """,
            "drop it",
        ),
        reported(
            """
            from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powerSGD

            state = powerSGD.PowerSGDState(process_group=None, matrix_approximation_rank=2)
            model.register_comm_hook(state, powerSGD.powerSGD_hook)
            """,
            "drop it",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[RuleFinding]:
        """Yield a finding for one registration."""
        assert isinstance(node, cst.Call)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == REGISTER_HOOK:
            advice = "drop it, the gradients of DDP are reduced in the graph"
            if context.for_torch_tpu:
                advice = f"{UNMEASURED}, or drop it"
            message = f"{code(node)}: {advice}"
            yield from self.report(node, message)
