"""Addresses and storages of tensors."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts

ASKS = frozenset({"data_ptr", "untyped_storage", "storage", "typed_storage"})


class DataPtr(Hazard):
    """The address or the storage of a tensor is used.

    **Why.** A tensor on XLA has no memory before its graph runs: `data_ptr()` is 0 for every tensor, so that
    all of them look shared; `untyped_storage().data_ptr()` raises.

    **What to do.** Compare with `is`, or by name; find shared parameters through
    `named_parameters(remove_duplicate=False)` and `id`.

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
            message = (
                "an address is 0 for every tensor on XLA, a storage raises: compare by name or id"
            )
            yield self.hit(node, f".{name}(): {message}")
