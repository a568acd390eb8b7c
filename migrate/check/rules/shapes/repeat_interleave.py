"""`repeat_interleave` with a tensor of counts."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.common import method, receiver, varying
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.new_shapes import SHAPE_OF_VALUES
from migrate.reading.facts import Facts
from migrate.syntax.tree import keyword


class RepeatInterleave(Hazard):
    """`repeat_interleave` with a tensor of counts has a shape that depends on values.

    **Why.** It runs on the CPU (the fallback `aten::repeat_interleave.Tensor`), also where `output_size`
    is given, and what follows is compiled for every total.

    **What to do.** With one count for all, pass the integer. Else gather with an index of fixed length
    that the data loader makes.
    """

    code = "XLA106"
    name = "repeat-interleave"
    severity = Severity.WARNING
    targets = BOTH
    on_torch_tpu = SHAPE_OF_VALUES
    nodes = (cst.Call,)
    words = "repeat_interleave"
    examples = (
        example(
            """
            import torch


            class Regulator(torch.nn.Module):
                def forward(self, x, counts):
                    counts = counts.long()
                    return torch.repeat_interleave(x, counts, dim=1)  # XLA106
            """
        ),
        example(
            """
            import torch


            class Attention(torch.nn.Module):
                def forward(self, x, groups: int):
                    return x.repeat_interleave(4, dim=1) + x.repeat_interleave(groups, dim=1)
            """
        ),
    )
    mended = example(
        """
        import torch


        class Regulator(torch.nn.Module):
            def forward(self, x, counts, frames: int = 512):
                ends = counts.cumsum(1)
                at = torch.arange(frames, device=x.device)
                row = (at.view(1, -1, 1) >= ends.unsqueeze(1)).sum(-1).clamp(max=x.shape[1] - 1)
                return x.gather(1, row.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call whose counts are a tensor."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        positional = [arg.value for arg in node.args if arg.keyword is None]
        if name == "torch.repeat_interleave":
            counts = positional[1] if len(positional) > 1 else None
        elif method(node) == "repeat_interleave" and facts.values.is_tensor(receiver(node)):
            counts = positional[0] if positional else None
        else:
            return
        named = keyword(node, "repeats")
        counts = named.value if named is not None else counts
        if facts.values.is_tensor(counts):
            message = "repeat_interleave with a tensor of counts: a compilation for each total"
            yield from varying(self, node, counts, message, facts)
