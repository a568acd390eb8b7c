"""DistributedDataParallel that looks for parameters without a gradient."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import option, truth
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import code

WRAPPERS = frozenset(
    {
        "shims.ddp",
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.parallel.distributed.DistributedDataParallel",
    }
)


class UnusedParameters(Hazard):
    """DistributedDataParallel looks for parameters that get no gradient.

    **Why.** With `find_unused_parameters=True` the replicas tell each other which parameters they used. Where
    one got no gradient, every backward pass reads the answer from the device: the graph of the step is cut
    there, and the host waits. Where all parameters are used, nothing is read.

    **What to do.** Leave it out where every parameter is used in each step. Freeze the others
    (`requires_grad_(False)`) before DDP sees the model, or use all of them in each step:
    `loss + 0 * unused.sum()`.

    Source: torch 2.9, torch_xla 2.9 (measured, reads of the device a step: one with an unused parameter,
    none without).
    """

    code = "XLA212"
    name = "unused-parameters"
    severity = Severity.INFO
    is_mentioned = True
    nodes = (cst.Call,)
    words = "find_unused_parameters"
    examples = (
        example(
            """
            import torch_xla
            from torch.nn.parallel import DistributedDataParallel as DDP


            def wrap(model):
                return DDP(model.to("xla"), find_unused_parameters=True)  # XLA212
            """
        ),
        example(
            """
            import argparse

            import torch_xla
            from torch.nn.parallel import DistributedDataParallel as DDP

            parser = argparse.ArgumentParser()
            parser.add_argument("--find-unused", action="store_true")
            args = parser.parse_args()
            LOOK = True


            def wrap(model, unused=False):
                options = {"find_unused_parameters": args.find_unused}  # XLA212
                first = DDP(model.to("xla"), find_unused_parameters=args.find_unused)  # XLA212
                second = DDP(model.to("xla"), find_unused_parameters=LOOK)  # XLA212
                third = DDP(model.to("xla"), find_unused_parameters=unused)  # XLA212
                return DDP(first.module, **options), second, third
            """
        ),
        example(
            """
            import torch_xla
            from torch.nn.parallel import DistributedDataParallel as DDP


            LOOK = False


            def wrap(model, args):
                plain = DDP(model.to("xla"), find_unused_parameters=LOOK)
                frozen = DDP(model.to("xla"), find_unused_parameters=False)
                static = DDP(model.to("xla"), find_unused_parameters=True, static_graph=True)
                return plain, frozen, static
            """
        ),
    )
    mended = example(
        """
        import torch_xla
        from torch.nn.parallel import DistributedDataParallel as DDP


        def wrap(model):
            model.head.requires_grad_(False)
            return DDP(model.to("xla"))
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one model that is wrapped with this option."""
        assert isinstance(node, cst.Call)
        if facts.names.of(node.func) not in WRAPPERS:
            return
        looks = option(node, "find_unused_parameters", facts)
        static = option(node, "static_graph", facts)
        if looks is None or (is_true := truth(looks, facts)) is False:
            return
        if static is None or truth(static, facts) is False:
            where = "find_unused_parameters=True" if is_true else f"where `{code(looks)}` is true"
            message = (
                f"{where}: where a parameter gets no gradient, every backward pass reads "
                "the device; leave it out where all are used, or freeze the others"
            )
            yield self.hit(looks, message)
