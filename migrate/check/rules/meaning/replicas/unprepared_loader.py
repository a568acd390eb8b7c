"""Batches of a loader that Accelerate did not prepare, given to a model that it did."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts


class UnpreparedLoader(Hazard):
    """A prepared model is given batches of a loader that is not prepared.

    **Why.** On several GPUs Accelerate wraps the model in DistributedDataParallel with `device_ids`, which
    moves the inputs to the GPU. On XLA it wraps nothing, and only a prepared loader moves its batches: the
    model stops with `Expected XLA tensor`.

    **What to do.** Give the loader to `accelerator.prepare()` too, or move the batch:
    `x = x.to(accelerator.device)`.

    Source: Accelerate 1.15 and torch_xla 2.9, measured.
    """

    code = "XLA853"
    name = "unprepared-loader"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    of_facts = ("unprepared",)
    examples = (
        example(
            """
            import torch
            from accelerate import Accelerator
            from accelerate.utils import set_seed
            from torch.utils.data import DataLoader


            def evaluate(model, loader):
                for (x,) in loader:
                    model(x)  # XLA853


            def main(train_set, test_set):
                accelerator = Accelerator()
                set_seed(0)
                model = torch.nn.Linear(4, 1)
                train = DataLoader(train_set)
                model, train = accelerator.prepare(model, train)
                for (x,) in train:
                    model(x)
                evaluate(model, DataLoader(test_set))
            """
        ),
        example(
            """
            import torch
            from accelerate import Accelerator
            from accelerate.utils import set_seed
            from torch.utils.data import DataLoader


            def main(train_set, test_set):
                accelerator = Accelerator()
                set_seed(0)
                model = torch.nn.Linear(4, 1)
                train, test = DataLoader(train_set), DataLoader(test_set)
                model, train = accelerator.prepare(model, train)
                for x, y in test:
                    x = x.to(accelerator.device)
                    model(x)
                for batch in test:
                    model(batch["x"].to(accelerator.device))
            """
        ),
    )
    mended = example(
        """
        import torch
        from accelerate import Accelerator
        from accelerate.utils import set_seed
        from torch.utils.data import DataLoader


        def main(test_set):
            accelerator = Accelerator()
            set_seed(0)
            model, test = accelerator.prepare(torch.nn.Linear(4, 1), DataLoader(test_set))
            for (x,) in test:
                model(x)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call of a prepared model."""
        assert isinstance(node, cst.Call)
        unprepared = facts.context.calls.unprepared
        batch = unprepared.get(facts.context.place(node)) if unprepared else None
        if batch is not None:
            yield self.hit(
                node,
                f"{batch}, which accelerator.prepare() is not given: on XLA nothing moves it to the device: "
                "prepare the loader too, or move the batch to accelerator.device",
            )
