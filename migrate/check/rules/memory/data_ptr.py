"""Addresses and storages of tensors."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.check.common import method, place_of, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import keyword, nodes_of

ASKS = frozenset({"data_ptr", "untyped_storage", "storage", "typed_storage"})


class DataPtr(Hazard):
    """The address or the storage of a tensor is used.

    **Why.** A tensor on XLA has no memory before its graph runs: `data_ptr()` is 0 for every tensor, so that
    all of them look shared; `untyped_storage().data_ptr()` raises.

    **What to do.** Compare with `is`, or by name; find shared parameters through
    `named_parameters(remove_duplicate=False)` and `id`. Before the model moves, addresses are the host's.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA601"
    name = "data-ptr"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = spelled(ASKS)
    examples = (
        example(
            """
            import torch


            def shared(a: torch.Tensor, b: torch.Tensor):
                return a.data_ptr() == b.data_ptr()  # XLA601


            def seen(model):
                return {p.data_ptr() for p in model.parameters()}  # XLA601
            """
        ),
        example(
            """
            import torch
            from nets import Net, place


            def count(path, here):
                if path:
                    net = Net.from_pretrained(path)
                else:
                    net = Net()
                count = sum({p.data_ptr(): p.numel() for p in net.parameters()}.values())
                net.to("xla")
                there = {p.data_ptr() for p in net.parameters()}  # XLA601
                near = Net(device="xla")
                return count, there, {p.data_ptr() for p in near.parameters()}  # XLA601
            """
        ),
        example(
            """
            import numpy as np
            import torch


            def seen(model, library):
                library.storage()
                return {id(p) for p in model.parameters()}
            """
        ),
    )
    mended = example(
        """
        import torch


        def shared(a: torch.Tensor, b: torch.Tensor):
            return a is b


        def seen(model):
            return {name for name, _ in model.named_parameters()}
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call."""
        assert isinstance(node, cst.Call)
        name = method(node)
        if name not in ASKS or node.args or facts.names.of(node.func) is not None:
            return
        known = facts.values.is_tensor(receiver(node))
        # Only tensors have this method; the others are common names.
        if known or (name == "data_ptr" and "torch" in facts.names.roots):
            if method(receiver(node)) in ASKS:
                return  # x.untyped_storage().data_ptr(): said once
            if (model := _model_of(receiver(node), facts)) is not None and _is_on_host(
                model, node, facts
            ):
                return  # its addresses are those of the host
            message = (
                "an address is 0 for every tensor on XLA, a storage raises: compare by name or id"
            )
            yield self.hit(node, f".{name}(): {message}")


def _model_of(value: cst.BaseExpression, facts: Facts) -> cst.Name | None:
    """Return the variable whose parameters a loop or a comprehension gives to `value`, or None."""
    if not isinstance(value, cst.Name):
        return None
    for above in facts.context.ancestors(value):
        loop = above.for_in if isinstance(above, cst.BaseComp) else above
        if isinstance(loop, cst.For | cst.CompFor) and value.value in (
            name.value for name in nodes_of(loop.target, cst.Name)
        ):
            asked = method(loop.iter) in ("parameters", "named_parameters", "buffers")
            model = receiver(cst.ensure_type(loop.iter, cst.Call)) if asked else None
            return model if isinstance(model, cst.Name) else None
    return None


def _is_on_host(model: cst.Name, at: cst.Call, facts: Facts) -> bool:
    """Whether calls make `model` in the code around `at`, and none moves it before `at`."""
    values = facts.context.bound_values(model)
    if not values or any(not isinstance(v, cst.Call) or _moves(v, facts) for v in values):
        return False
    start = place_of(at, facts)
    return not any(
        place_of(call, facts) < start and _moves(call, facts)
        for call in facts.calls
        if model.value in {name.value for name in nodes_of(call, cst.Name)}
    )


def _moves(call: cst.Call, facts: Facts) -> bool:
    """Whether a call may put a model on the device: a move, a device, a function that moves."""
    placed = any(keyword(call, name) is not None for name in ("device", "device_map"))
    moves = facts.context.place(call) in facts.context.calls.moving
    return placed or moves or method(call) in ("to", "cuda", "prepare", "to_empty")
