"""Lengths and loop counts that are read from tensors."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.hazards.common import in_step, method, receiver
from migrate.hazards.facts import Facts
from migrate.hazards.hazard import Hazard, Hit, Severity, example
from migrate.hazards.vocabulary import READS
from migrate.rewrite.tree import code, nodes_of

PACKED = frozenset({"torch.nn.utils.rnn.pack_padded_sequence", "torch.nn.utils.rnn.pack_sequence"})


class VaryingLength(Hazard):
    """A length or a number of turns is read from a tensor of the batch.

    **Why.** The value is fetched from the device, and as a slice bound or a number of turns it is a part of
    the graph: every new one compiles again. `x[:, :k]` and `topk(k)`: measured, one compilation for each k.

    **What to do.** Pad to a few fixed lengths in the data loader (`shims.pad_collate`,
    `shims.BucketSampler`), and mask.
    """

    code = "XLA107"
    name = "varying-length"
    severity = Severity.WARNING
    nodes = (cst.Call, cst.Slice)
    examples = (
        example(
            """
            import torch
            from torch.nn.utils.rnn import pack_padded_sequence


            class Encoder(torch.nn.Module):
                def forward(self, x, lengths):
                    lengths = lengths.long()
                    x = x[:, : int(lengths.max())]  # XLA107
                    for t in range(lengths.max().item()):  # XLA107
                        x = x + t
                    return pack_padded_sequence(x, lengths)  # XLA107
            """
        ),
        example(
            """
            import torch


            class Encoder(torch.nn.Module):
                def forward(self, x):
                    half = x.shape[1] // 2
                    for t in range(x.size(0)):
                        x = x + t
                    return x[:, :half], x[: x.size(0) - 1]


            def head(rows, lengths):
                return rows[: int(max(lengths))]
            """
        ),
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one slice, loop count or packed sequence."""
        if isinstance(node, cst.Slice):
            for bound in (node.lower, node.upper):
                if bound is not None and _read(bound, facts):
                    text = f"`{code(bound)}` as a slice bound is read from a tensor"
                    yield self._hit(bound, text, facts)
            return
        assert isinstance(node, cst.Call)
        if facts.names.of(node.func) in PACKED:
            yield self._hit(node, "a packed sequence has its lengths in the graph", facts)
        elif isinstance(node.func, cst.Name) and node.func.value == "range":
            yield from (
                self._hit(node, f"`{code(node)}`: the number of turns is read", facts)
                for arg in node.args[:2]
                if _read(arg.value, facts)
            )

    def _hit(self, node: cst.CSTNode, what: str, facts: Facts) -> Hit:
        message = f"{what}: a compilation for each; pad to a few lengths and mask"
        return self.hit(node, message, in_step(node, facts, self.severity))


def _read(bound: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `bound` holds a value that is read from a tensor."""
    if facts.tensors.is_tensor(bound):
        return True
    for call in nodes_of(bound, cst.Call):
        if method(call) in READS and facts.tensors.is_tensor(receiver(call)):
            return True
        plain = isinstance(call.func, cst.Name) and call.func.value == "int"
        if plain and call.args and facts.tensors.is_tensor(call.args[0].value):
            return True
    return False
