"""Sums that one replica alone has, read by all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.words import NUMBERS, READ_METHODS
from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.origins import at_line
from migrate.syntax.tree import bind, code

REDUCE = "torch.distributed.reduce"
PARAMETERS = ("tensor", "dst", "op", "group", "async_op", "group_dst")


class SumOfOne(Hazard):
    """All replicas read what `dist.reduce` sums on one of them.

    **Why.** `dist.reduce(x, dst=0)` leaves the sum on replica 0. On the others `x` is what it was before on
    XLA, and anything with NCCL. Where replicas decide by it (an early stop, the best value so far, a save
    beside a barrier), they decide differently, and wait for each other for ever.

    **What to do.** `dist.all_reduce(x)` gives the sum to all. Where only a log needs it, read it below
    `if rank == 0:`.

    Source: torch 2.9, `torch.distributed.reduce`; torch_xla 2.9, `distributed/xla_backend.py` (measured: of
    two replicas one has the sum).
    """

    code = "XLA856"
    name = "sum-of-one"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    words = "reduce"
    examples = (
        example(
            """
            import torch.distributed as dist


            def evaluate(model, x):
                value = model(x).mean()
                dist.reduce(value, dst=0)  # XLA856
                return value.item() / dist.get_world_size()


            def watch(loss, best):
                dist.reduce(loss, 0, op=dist.ReduceOp.SUM)  # XLA856
                return float(loss) < best
            """
        ),
        example(
            """
            import torch.distributed as dist


            def show(model, x, rank, before):
                value = model(x).mean()
                before.append(value.item())
                dist.reduce(value, dst=0)
                if rank == 0:
                    print(value.item())
                dist.all_reduce(value)
                return value.item()


            def keep(total):
                dist.reduce(total, dst=0)
                return total
            """
        ),
    )
    mended = example(
        """
        import torch.distributed as dist


        def evaluate(model, x):
            value = model(x).mean()
            dist.all_reduce(value)
            return value.item() / dist.get_world_size()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one reduction to a replica."""
        assert isinstance(node, cst.Call)
        if facts.names.of(node.func) != REDUCE or facts.guards.around(node) is not None:
            return
        tensor = (bind(node, PARAMETERS) or {}).get("tensor")
        if tensor is None or not isinstance(tensor.value, cst.Name):
            return
        read = next(self._reads(tensor.value.value, node, facts), None)
        if read is not None:
            line = facts.context.position(read).line
            name = tensor.value.value
            message = (
                f"only one replica has the sum, and all read `{name}` ({at_line(line)}): what they decide by "
                f"it parts them; dist.all_reduce({name}), or read it on that replica alone"
            )
            yield self.hit(node, message)

    def _reads(self, name: str, reduction: cst.Call, facts: Facts) -> Iterator[cst.Call]:
        """Yield the reads of a variable after its reduction that all replicas make, up to its next value."""
        context = facts.context
        around = context.function_around(reduction) or context.module
        after = context.position(reduction).line
        for call in facts.below(around, cst.Call):
            if context.position(call).line <= after:
                continue
            if call.args and code(call.args[0].value) == name:
                if isinstance(call.func, cst.Name) and call.func.value in NUMBERS:
                    if facts.guards.around(call) is None:
                        yield call
                    continue
                if (facts.names.of(call.func) or "").startswith("torch.distributed."):
                    return  # another collective makes it alike
            of = receiver(call) if method(call) in READ_METHODS else None
            if isinstance(of, cst.Name) and of.value == name and facts.guards.around(call) is None:
                yield call
