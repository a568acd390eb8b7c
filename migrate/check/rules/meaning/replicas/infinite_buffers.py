"""Infinities in a tensor that is broadcast."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.replicated.broadcasts import BUFFERS, INFINITE, PARAMETERS, STATE, WRAPPED
from migrate.reading.facts import Facts
from migrate.reading.flow.infinite import Infinite
from migrate.reading.values.collectives import TENSORS, called, makes_gloo_group
from migrate.syntax.tree import bind, code, nodes_of, string_value

HELD = {
    "torch.nn.Parameter": PARAMETERS,
    "torch.nn.parameter.Parameter": PARAMETERS,
    "torch.nn.Buffer": BUFFERS,
    "torch.nn.parameter.Buffer": BUFFERS,
}
OF_BUFFERS = frozenset({BUFFERS, STATE, WRAPPED})
CONSTANT = "torch.nn.init.constant_"
OF_XLA = "torch_xla.core.xla_model.collective_broadcast"
REGISTER = ("name", "tensor", "persistent")
WHY = "a broadcast over XLA multiplies by 0 or 1 and sums, and makes NaN of them on every replica"
FINITE = "use torch.finfo(dtype).min"


class InfiniteBuffers(Hazard):
    """A buffer, a parameter or a broadcast tensor holds infinities, which become NaN.

    **Why.** XLA has no broadcast: torch_xla multiplies the tensor by 1 on the source and by 0 elsewhere, and
    sums. `-inf * 0` is NaN, so that every replica holds NaN. DistributedDataParallel broadcasts all
    parameters and buffers when it is made, non-persistent ones too, and the buffers again before each
    forward. A causal mask of -inf in a buffer makes the loss NaN from the first step, without an error.

    **What to do.** `torch.finfo(torch.float32).min` in place of `float("-inf")`; or make the mask in
    `forward`. `DistributedDataParallel(model, broadcast_buffers=False)` sends no buffers at all, which is
    enough where they are equal on all replicas. In the portable style shims clears what the receivers hold
    first, and infinities stay.

    Source: torch_xla 2.9, `collective_broadcast` of `core/xla_model.py`, measured on two replicas.
    """

    code = "XLA869"
    name = "infinite-buffers"
    severity = Severity.ERROR
    nodes = (cst.Call, cst.Assign)
    words = INFINITE
    examples = (
        example(
            """
            import torch
            import torch.distributed as dist
            from torch import nn
            from torch.nn.parallel import DistributedDataParallel as DDP


            def causal(n):
                mask = torch.empty(n, n)
                mask.fill_(float("-inf"))
                return mask.triu_(1)


            class Attention(nn.Module):
                def __init__(self, n):
                    super().__init__()
                    mask = torch.full((n, n), float("-inf")).triu(1)
                    self.register_buffer("mask", mask, persistent=False)  # XLA869
                    self.register_buffer("other", causal(n))  # XLA869
                    keep = torch.ones(n, n, dtype=torch.bool).tril()
                    self.register_buffer("bias", torch.where(keep, 0.0, -torch.inf))  # XLA869
                    self.scale = nn.Parameter(torch.zeros(n).masked_fill(keep[0], -torch.inf))  # XLA869


            def main(n):
                model = DDP(Attention(n).to("xla"))
                best = torch.tensor([float("inf")], device="xla")
                dist.broadcast(best, src=0)  # XLA869
            """
        ),
        example(
            """
            import torch
            from torch import nn
            from torch.nn.parallel import DistributedDataParallel as DDP


            class Attention(nn.Module):
                def __init__(self, n):
                    super().__init__()
                    mask = torch.full((n, n), float("-inf")).triu(1)
                    self.mask = mask
                    self.register_buffer("hidden", mask == float("-inf"))
                    self.register_buffer("bias", torch.where(mask.isinf(), -1e9, 0.0))
                    self.register_buffer("finite", mask.masked_fill(mask == float("-inf"), -1e9) * 0)

                def forward(self, x):
                    return x.masked_fill(x > 2, float("-inf")).softmax(-1)


            model = DDP(Attention(4).to("xla"))
            """
        ),
        example(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            class Attention(torch.nn.Module):
                def __init__(self, n):
                    super().__init__()
                    self.register_buffer("mask", torch.full((n, n), float("-inf")).triu(1))


            model = DDP(Attention(4).to("xla"), broadcast_buffers=False)
            """
        ),
    )
    mended = example(
        """
        import torch
        from torch.nn.parallel import DistributedDataParallel as DDP


        class Attention(torch.nn.Module):
            def __init__(self, n):
                super().__init__()
                lowest = torch.finfo(torch.float32).min
                self.register_buffer("mask", torch.full((n, n), lowest).triu(1))


        model = DDP(Attention(4).to("xla"))
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield a hit for a tensor with infinities that a model holds or that is broadcast."""
        calls = facts.context.calls
        if facts.context.portable or not (calls.accelerated or facts.uses_xla):
            return
        infinite = Infinite(facts)
        if isinstance(node, cst.Call) and (tensor := _sent(node, facts)) is not None:
            if infinite.holds(tensor):
                yield self.hit(node, f"`{code(tensor)}` holds infinities: {WHY}; {FINITE}")
            return
        parts = calls.broadcast
        if not parts:
            return
        name, held, sent_as = _held(node, facts, infinite)
        if held is None or parts.isdisjoint(sent_as) or not infinite.holds(held):
            return
        mend = f"{FINITE}, or make it in forward"
        if parts & sent_as == {WRAPPED}:
            mend += "; or DistributedDataParallel(…, broadcast_buffers=False)"
        yield self.hit(node, f"{name} holds infinities: {WHY}; {mend}")


def _sent(call: cst.Call, facts: Facts) -> cst.BaseExpression | None:
    """Return the tensor that `call` broadcasts over XLA."""
    if facts.names.of(call.func) == OF_XLA and call.args:
        return call.args[0].value
    if called(call, facts.context) != "broadcast":
        return None
    bound = bind(call, TENSORS["broadcast"]) or {}
    group = bound.get("group")
    if "tensor" not in bound or (
        group is not None and makes_gloo_group(group.value, facts.context)
    ):
        return None
    return bound["tensor"].value


def _held(
    node: cst.CSTNode, facts: Facts, infinite: Infinite
) -> tuple[str, cst.BaseExpression | None, frozenset[str]]:
    """Return what a model holds by `node`, in words, the value, and as what it is broadcast."""
    if isinstance(node, cst.Call):
        name = facts.names.of(node.func) or ""
        if name in HELD and node.args:
            sent_as = OF_BUFFERS if HELD[name] == BUFFERS else frozenset({PARAMETERS})
            return f"the {HELD[name][:-1]}", node.args[0].value, sent_as
        if name == CONSTANT and len(node.args) > 1:
            return f"`{code(node.args[0].value)}`", node.args[1].value, frozenset({PARAMETERS})
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "register_buffer":
            bound = bind(node, REGISTER) or {}
            saved = "persistent" not in bound or code(bound["persistent"].value) != "False"
            if "tensor" in bound and "name" in bound:
                sent_as = OF_BUFFERS if saved else OF_BUFFERS - {STATE}
                name = string_value(bound["name"].value) or code(bound["name"].value)
                return f"the buffer `{name}`", bound["tensor"].value, sent_as
    target, value = infinite.written_to(node)
    makes = isinstance(value, cst.Call) and facts.names.of(value.func) in HELD  # a call of its own
    if target is not None and not makes and _is_buffer(target, facts):
        return f"the buffer `{code(target)}`", value, OF_BUFFERS
    return "", None, frozenset()


def _is_buffer(attribute: cst.Attribute, facts: Facts) -> bool:
    """Whether the class around `attribute` of `self` makes a buffer by this name."""
    around = facts.context.class_around(attribute)
    calls = nodes_of(around, cst.Call) if around is not None else ()
    registered = any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "register_buffer"
        and (name := (bind(call, REGISTER) or {}).get("name")) is not None
        and string_value(name.value) == attribute.attr.value
        for call in calls
    )
    return registered or any(
        isinstance(value, cst.Call) and HELD.get(facts.names.of(value.func) or "") == BUFFERS
        for value in facts.values.given_to(attribute)
    )
