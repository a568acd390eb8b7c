"""Random numbers that are not seeded on XLA."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue import torch_cuda
from migrate.catalogue.entry import names
from migrate.catalogue.torch_other import CPU_SEEDS
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.only_cuda import only_with_cuda
from migrate.model.draws.randomness import Start
from migrate.reading.facts import Facts

SEEDS = names(*CPU_SEEDS)
CUDA_SEEDS = names(*torch_cuda.SEEDS)
XLA_SEEDS = frozenset(
    {
        "accelerate.utils.random.set_seed",
        "accelerate.utils.set_seed",
        "shims.manual_seed",
        "torch_xla.core.xla_model.set_rng_state",
        "torch_xla.manual_seed",
    }
)
UNSEEDED = (
    "nothing seeds the script, and XLA starts all replicas at the same seed: they draw the same noise and "
    "drop the same elements, unlike GPUs: torch_xla.manual_seed(torch.initial_seed() + xr.global_ordinal())"
)


class Seed(Hazard):
    """The random numbers of the device are not seeded.

    **Why.** `torch.manual_seed` does not seed XLA. XLA starts every replica of every run at one and the
    same seed of its own: the seed of the script changes nothing on the device, and where it depends on
    the rank, all replicas draw the same noise and drop the same elements. Accelerate, Fabric and Lightning
    do not change that; `accelerate.utils.set_seed` seeds XLA too.

    A script without a seed that draws on the device is found at the call that joins the process group: on
    GPUs each rank draws its own numbers, on XLA all replicas draw the same.

    **What to do.** `torch_xla.manual_seed(seed)` beside it, in the replica; without a seed
    `torch_xla.manual_seed(torch.initial_seed() + xr.global_ordinal())`.

    Source: torch_xla 2.9, measured; pytorch/xla#2092.
    """

    code = "XLA813"
    name = "seed"
    severity = Severity.WARNING
    spoken_by = ("rng",)
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch

            torch.manual_seed(0)  # XLA813
            if torch.cuda.is_available():
                torch.cuda.manual_seed_all(0)  # XLA813 info
            x = torch.ones(3).cuda()
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist

            dist.init_process_group("nccl")  # XLA813
            x = torch.ones(3).cuda()
            y = torch.nn.functional.dropout(x)
            """
        ),
        example(
            """
            import torch
            import torch_xla

            torch.manual_seed(0)
            torch_xla.manual_seed(0)
            x = torch.ones(3).to("xla")
            """
        ),
        example(
            """
            import torch
            from accelerate import Accelerator


            def main():
                accelerator = Accelerator()
                torch.manual_seed(7 + accelerator.process_index)  # XLA813
                return torch.randn(4, device=accelerator.device)
            """
        ),
        example(
            """
            import torch
            from accelerate import Accelerator
            from accelerate.utils import set_seed


            def main():
                accelerator = Accelerator()
                set_seed(7, device_specific=True)
                torch.manual_seed(7)
                return torch.randn(4, device=accelerator.device)
            """
        ),
        example(
            """
            import torch

            torch.manual_seed(0)
            x = torch.ones(3)
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch_xla

        torch.manual_seed(0)
        torch_xla.manual_seed(0)
        x = torch.ones(3).to("xla")
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one seed in a script that moves to a device and does not seed it."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        if facts.context.portable:
            return  # the rule rng speaks of seeds; those of a launching process stay
        joining = facts.context.calls.seeding.joining
        if joining and joining.get(facts.context.place(node)) is Start.OWN:
            yield self.hit(node, UNSEEDED, self.severity)
        if name not in SEEDS | CUDA_SEEDS or not facts.called.isdisjoint(XLA_SEEDS):
            return
        is_led = facts.context.calls.led is not None  # the framework moves to the device
        if name in CUDA_SEEDS or is_led or facts.context.moves_to_accelerator:
            severity = Severity.INFO if only_with_cuda(node, facts) else self.severity
            message = (
                f"{name} does not seed XLA, which starts every replica at the same seed: "
                "torch_xla.manual_seed(seed) too, in the replica"
            )
            yield self.hit(node, message, severity)
