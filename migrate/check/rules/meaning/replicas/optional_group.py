"""A process group that an option switches off, in a program that is launched on all chips."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts


class OptionalGroup(Hazard):
    """Replicas are launched on all chips, and an option decides whether they join a process group.

    **Why.** On GPUs there is one process where the option is off: nobody starts the script with torchrun.
    `torch_xla.launch` starts a replica on every chip whatever the options are. With the option off each
    replica trains a model of its own, on its share of the data where a sampler asks for the rank, and no
    gradients are averaged: no error, and the model that is saved is one replica's.

    **What to do.** Join the group in every run. Or launch only where the option is on:
    `torch_xla.launch(_mp_fn) if args.distributed else _mp_fn(0)`; that process trains on one chip.

    The option may be an argument of the command line, a parameter with a default that no call passes, a field
    of a data class, a constant, or a variable of the environment. It decides by a test
    (`if args.backend == "nccl":`), by an early return, or by the class that it chooses
    (`BACKENDS[args.backend](args)`).

    An error where the option is off by default, a warning where its default is not in the script: a property
    that some classes of the project answer with False, of an object that a configuration names.

    **Left alone.** Tests of something that the script sets, such as `args.distributed` from WORLD_SIZE, and
    of a rank or a number of processes.

    Source: torch_xla 2.9 on simulated replicas.
    """

    code = "XLA873"
    name = "optional-group"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    of_facts = ("optional_groups",)
    of_idle_code = True
    examples = (
        example(
            """
            import argparse

            import torch.distributed as dist
            import torch_xla
            import torch_xla.distributed.xla_backend


            def _mp_fn(index):
                parser = argparse.ArgumentParser()
                parser.add_argument("--distributed", action="store_true")
                args = parser.parse_args()
                if args.distributed:
                    dist.init_process_group("xla", init_method="xla://")  # XLA873


            if __name__ == "__main__":
                torch_xla.launch(_mp_fn)
            """
        ),
        example(
            """
            import argparse

            import torch.distributed as dist
            import torch_xla
            import torch_xla.distributed.xla_backend


            class Alone:
                pass


            class Together:
                def __init__(self):
                    dist.init_process_group("xla", init_method="xla://")


            BACKENDS = {"together": Together, None: Alone}


            def _mp_fn(index):
                parser = argparse.ArgumentParser()
                parser.add_argument("--backend", default=None, choices=BACKENDS.keys())
                args = parser.parse_args()
                backend = BACKENDS[args.backend]()  # XLA873


            if __name__ == "__main__":
                torch_xla.launch(_mp_fn)
            """
        ),
        example(
            """
            import argparse
            import os

            import torch.distributed as dist
            import torch_xla
            import torch_xla.distributed.xla_backend


            def _mp_fn(index):
                parser = argparse.ArgumentParser()
                parser.add_argument("--distributed", action="store_true")
                args = parser.parse_args()
                args.distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
                if args.distributed:
                    dist.init_process_group("xla", init_method="xla://")


            if __name__ == "__main__":
                torch_xla.launch(_mp_fn)
            """
        ),
    )
    mended = example(
        """
        import argparse

        import torch.distributed as dist
        import torch_xla
        import torch_xla.distributed.xla_backend


        def _mp_fn(index):
            dist.init_process_group("xla", init_method="xla://")


        if __name__ == "__main__":
            torch_xla.launch(_mp_fn)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call that joins the group."""
        groups = facts.context.calls.optional_groups
        group = groups.get(facts.context.place(node)) if groups else None
        if group is None:
            return
        test, off = group
        default = ", as it is by default," if off else ""
        message = (
            f"the launch starts a replica on every chip, and the process group is joined only if `{test}`: "
            f"where that is off{default} each chip trains a model of its own on its share of the data, and "
            "nothing averages the gradients: join it in every run, or launch one process where it is off"
        )
        yield self.hit(node, message, None if off else Severity.WARNING)
