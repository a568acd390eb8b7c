"""Hazard of models whose weights are drawn on each replica separately."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import last_part


class DrawnWeights(Hazard):
    """Replicas train models with different weights.

    **Why.** On GPUs Accelerate and the Trainer of transformers wrap the model in DistributedDataParallel,
    which gives every rank the weights of rank 0. On XLA they wrap nothing and send nothing. Replicas that
    seed themselves differently, or not at all, draw different weights. The gradients are averaged, so the
    weights stay different: no error, and the model that is saved is the one of rank 0.

    **What to do.** Seed all replicas alike before the model is made: `accelerate.utils.set_seed(seed)`. Or
    send the weights after the model is on the device: `xm.broadcast_master_param(model)`.

    Where the weights are all loaded, by `from_pretrained` or a strict `load_state_dict`, nothing is reported.

    Source: Accelerate 1.15, transformers 5.24 and torch_xla 2.9, measured.
    """

    code = "XLA852"
    name = "drawn-weights"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    words = "accelerate|transformers"
    examples = (
        example(
            """
            import torch
            from accelerate import Accelerator


            def main():
                accelerator = Accelerator()
                torch.manual_seed(3 + accelerator.process_index)  # XLA813
                model = torch.nn.Linear(4, 1)
                model, loader = accelerator.prepare(model, [])  # XLA852
            """
        ),
        example(
            """
            import torch
            from accelerate import Accelerator


            def main(lr):
                accelerator = Accelerator()
                net = torch.nn.Linear(4, 1)
                optimizer = torch.optim.SGD(net.parameters(), lr=lr)
                net, optimizer = accelerator.prepare(net, optimizer)  # XLA852
            """
        ),
        example(
            """
            import torch
            from accelerate import Accelerator
            from accelerate.utils import set_seed


            def main(lr):
                accelerator = Accelerator()
                set_seed(0)
                net = torch.nn.Linear(4, 1)
                set_seed(0, device_specific=True)
                optimizer = torch.optim.SGD(net.parameters(), lr=lr)
                net, optimizer = accelerator.prepare(net, optimizer)
            """
        ),
        example(
            """
            import torch
            from accelerate import Accelerator


            def main(path):
                accelerator = Accelerator()
                net = torch.nn.Linear(4, 1)
                net.load_state_dict(torch.load(path, map_location="cpu"))
                net = accelerator.prepare(net)
            """
        ),
    )
    mended = example(
        """
        import torch
        from accelerate import Accelerator
        from accelerate.utils import set_seed


        def main():
            accelerator = Accelerator()
            set_seed(0)
            return accelerator.prepare(torch.nn.Linear(4, 1))
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call that prepares such a model."""
        assert isinstance(node, cst.Call)
        drawn = facts.context.calls.drawn_weights
        why = drawn.get(facts.context.place(node)) if drawn else None
        if why is not None:
            is_trainer = last_part(node.func).endswith("Trainer")
            framework = "the Trainer" if is_trainer else "Accelerate"
            yield self.hit(
                node,
                f"replicas train different weights: {why}, and on XLA {framework} does not send those of "
                "replica 0: seed all alike before the model is made, or xm.broadcast_master_param(model) "
                "once it is on the device",
            )
