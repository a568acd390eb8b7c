"""Operators that torch_tpu does not have."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import TPU_ONLY
from migrate.check.common import NamedHazard, method, option, receiver, truth
from migrate.check.hazard import Hit, Severity, example
from migrate.reading.facts import Facts

INTERPOLATE = frozenset({"torch.nn.functional.interpolate", "torch.nn.Upsample"})
METHODS = frozenset({"cholesky"})


class MissingOperators(NamedHazard):
    """An operator is not implemented on torch_tpu.

    **Why.** torch_xla computes an operator that it lacks on the CPU. torch_tpu raises `NotImplementedError`.
    FSDP2 moves a model to its device by `parameter.data = …`, which torch refuses for torch_tpu.

    **What to do.** Compute it on the CPU: `torch.linalg.cholesky(x.cpu()).to(x.device)`. Leave
    `antialias=True` out, or resize images in the data loader. Move a model before `fully_shard`, or make it
    on "meta".

    Source: torch_tpu 0.2.0 with torch 2.13 (measured on XLA:CPU).
    """

    code = "XLA892"
    name = "missing-operator"
    severity = Severity.ERROR
    targets = TPU_ONLY
    nodes = (cst.Name, cst.Attribute, cst.Call)
    of_names = True
    words = "cholesky|antialias|record_stream|_amp_foreach|weight_norm|fully_shard"
    examples = (
        example(
            """
            import torch
            import torch.nn.functional as F


            def factor(x):
                return torch.linalg.cholesky(x)  # XLA892


            def resize(x):
                x = F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True)  # XLA892
                return F.interpolate(x, scale_factor=2.0, mode="bilinear", antialias=False)


            head = torch.nn.utils.weight_norm(torch.nn.Linear(8, 8))  # XLA892
            """
        ),
        example(
            """
            from functools import partial

            import torch
            from torch.distributed.fsdp import fully_shard


            def build():
                return torch.nn.Sequential(torch.nn.Linear(8, 8))


            def on_meta():
                with torch.device("meta"):
                    model = build()
                fully_shard(model)


            def on_the_host():
                model = build()
                fully_shard(model)  # XLA892


            shard = partial(fully_shard, reshard_after_forward=True)
            shard(torch.nn.Linear(8, 8))  # XLA892
            """
        ),
        example(
            """
            from functools import partial

            import torch
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard


            def factor(x):
                return torch.linalg.qr(x)


            moved = torch.nn.Linear(8, 8).to("tpu")
            fully_shard(moved)
            with torch.device("meta"):
                late = torch.nn.Linear(8, 8)
            fully_shard(late)
            mesh = init_device_mesh("cpu", (2,))
            fully_shard(torch.nn.Linear(8, 8), mesh=mesh)
            partial(fully_shard, mesh=mesh)(torch.nn.Linear(8, 8))
            """
        ),
    )
    mended = example(
        """
        import torch.nn.functional as F


        def resize(x):
            return F.interpolate(x, scale_factor=0.5, mode="bilinear")
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the use of one name, or one call."""
        if not isinstance(node, cst.Call):
            yield from super().find(node, facts)
            return
        name = facts.names.of(node.func)
        if facts.context.place(node) in facts.context.calls.optimizers.sharded_on_host:
            message = (
                "fully_shard cannot move a model to a TPU: torch raises at `parameter.data = …`; move the "
                'model before it, by .to("tpu")'
            )
            yield self.hit(node, message)
        elif name in INTERPOLATE:
            smooth = option(node, "antialias", facts)
            smooths = smooth is not None and truth(smooth, facts)
            if smooths is not False:
                message = f"{name} with antialias= is not implemented on a TPU: leave it out"
                yield self.hit(node, message, Severity.WARNING if smooths is None else None)
        elif name is None and method(node) in METHODS and facts.values.is_tensor(receiver(node)):
            yield self.hit(node, f".{method(node)}() is not implemented on a TPU: on x.cpu()")
