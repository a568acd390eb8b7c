"""Functions of torch that raise for tensors of XLA."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.prescan import spelled
from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.syntax.tree import code

# Of what a step computes with: it lies on the device where nothing says otherwise.
UNPLACED = frozenset({Kind.TENSOR, Kind.UNKNOWN})
METHODS = {
    "align_to": "torch.Tensor.align_to",
    "logdet": "torch.logdet",
    "refine_names": "torch.Tensor.refine_names",
    "slogdet": "torch.slogdet",
}
# Called by optimizers of CUDA only, with lists of parameters.
FUSED = "torch._fused_"


class UnsupportedTensors(Hazard):
    """A function of torch is called that raises for tensors of XLA.

    **Why.** Nested tensors, tensors with named dimensions and DLPack are for the CPU and for GPUs. `logdet`
    and `slogdet` run, but their gradient raises "Expected a proper Tensor but got None". The fused updates of
    optimizers, such as `torch._fused_adamw_`, raise too. On CUDA all of these work.

    **What to do.** Pad the sequences and pass a mask; leave the names out. For `logdet` compute on the host,
    `torch.logdet(x.cpu()).to(x.device)`, or, of a positive definite matrix,
    `2 * torch.linalg.cholesky(x).diagonal(dim1=-2, dim2=-1).log().sum(-1)`. Write the update of an optimizer
    with `torch._foreach_mul_` and the like, or use `torch.optim.AdamW`.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA882"
    name = "unsupported-tensors"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = spelled(
        {
            *METHODS,
            "dlpack",
            "nested_tensor",
            "_fused_adam_",
            "_fused_adamw_",
            "_fused_sgd_",
            "_fused_adagrad_",
        }
    )
    examples = (
        example(
            """
            import torch


            class Net(torch.nn.Module):
                def forward(self, x, parts):
                    packed = torch.nested.nested_tensor(parts)  # XLA882
                    x = x.refine_names("batch", "feature")  # XLA882
                    return torch.logdet(x) + x.slogdet()[1]  # XLA882 # XLA882
            """
        ),
        example(
            """
            import torch


            class Scaled(torch.optim.Optimizer):
                @torch.no_grad()
                def step(self):
                    for group in self.param_groups:
                        grads = [p.grad for p in group["params"]]
                        torch._fused_sgd_(  # XLA882
                            group["params"], grads, [], weight_decay=0.0, momentum=0.0, lr=0.1
                        )
            """
        ),
        example(
            """
            import numpy as np
            import torch


            class Net(torch.nn.Module):
                def forward(self, x):
                    return torch.linalg.cholesky(x).diagonal(dim1=-2, dim2=-1).log().sum(-1)


            @torch.no_grad()
            def spread(matrix):
                return torch.logdet(torch.eye(3)), np.linalg.slogdet(matrix)
            """
        ),
    )
    mended = example(
        """
        import torch


        class Net(torch.nn.Module):
            def forward(self, padded, mask):
                return padded.masked_fill(mask, 0.0)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call with a tensor of the device."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        if name is None:
            name = METHODS.get(method(node), "")
            values = [receiver(node)] if name else []
        else:
            values = [arg.value for arg in node.args]
        entry = catalogue.of(name)
        if entry is None or entry.code != self.code:
            return
        if name.startswith(FUSED):
            yield self.hit(node, f"{code(node.func)}: {entry.says()}")
            return
        inside = facts.steps.inside(node)
        parts = [
            part.value
            for value in values
            for part in (value.elements if isinstance(value, cst.List | cst.Tuple) else ())
        ]
        if any(
            facts.values.on_device(value) or (inside and facts.values.kind(value) in UNPLACED)
            for value in (*values, *parts)
        ):
            yield self.hit(node, f"{code(node.func)}: {entry.says()}")
