"""`all_to_all_single` with parts of different sizes."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import bind, code

PARAMETERS = ("output", "input", "output_split_sizes", "input_split_sizes", "group", "async_op")


class SplitSizes(Hazard):
    """`all_to_all_single` with split sizes raises on XLA.

    **Why.** XLA's all-to-all cuts its input into equal parts: other sizes are refused, also those of a
    mixture-of-experts layer, which depend on the values besides.

    **What to do.** Pad the parts to one size, and exchange the sizes with a first collective where they
    differ.

    Source: torch_xla 2.9, `distributed/xla_backend.py`.
    """

    code = "XLA825"
    name = "split-sizes"
    severity = Severity.ERROR
    spoken_by = ("send-recv",)
    nodes = (cst.Call,)
    words = "all_to_all_single"
    examples = (
        example(
            """
            import torch.distributed as dist


            def exchange(out, x, sizes):
                dist.all_to_all_single(out, x, output_split_sizes=sizes)  # XLA825
                dist.all_to_all_single(out, x, None, sizes)  # XLA825
            """
        ),
        example(
            """
            import torch.distributed as dist


            def exchange(out, x, group):
                dist.all_to_all_single(out, x, None, None, group=group)
                dist.all_to_all_single(out, x)
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch.distributed as dist


        def exchange(out, x, most=64):
            padded = torch.zeros(dist.get_world_size() * most, device=x.device)
            padded[: x.shape[0]] = x
            dist.all_to_all_single(out, padded)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one exchange with sizes of its own."""
        assert isinstance(node, cst.Call)
        if facts.names.of(node.func) != "torch.distributed.all_to_all_single":
            return
        given = bind(node, PARAMETERS) or {}
        sizes = (given.get(name) for name in ("output_split_sizes", "input_split_sizes"))
        if any(arg is not None and code(arg.value) not in ("None", "[]") for arg in sizes):
            message = "all_to_all_single with split sizes raises on XLA: pad the parts to one size"
            yield self.hit(node, message)
