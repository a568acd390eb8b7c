"""Indices of TPU devices."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import TPU_ONLY
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.devices import DEVICE
from migrate.reading.facts import Facts
from migrate.syntax.tree import code, string_value

INDEXED = re.compile(r"tpu:[1-9]\d*")
MESSAGE = "is tpu:0, with no error: every rank's chip has the index 0; 'tpu'"


class TpuIndex(Hazard):
    """A TPU device has an index.

    **Why.** A rank of torch_tpu sees one chip, and its index is 0 in every rank. `"tpu:1"` is made
    `tpu:0`, without an error; `torch.accelerator.set_device_index(1)` raises.

    **What to do.** `"tpu"`, without an index.

    Source: torch_tpu 0.2.0 (measured on XLA:CPU).
    """

    code = "XLA895"
    name = "tpu-index"
    severity = Severity.WARNING
    targets = TPU_ONLY
    nodes = (cst.SimpleString, cst.FormattedString, cst.Call)
    words = "tpu"
    examples = (
        example(
            """
            import torch


            def move(x, rank):
                first = x.to("tpu:1")  # XLA895
                second = x.to(f"tpu:{rank}")  # XLA895
                return first, second, torch.ones(2, device=torch.device("tpu", rank))  # XLA895
            """
        ),
        example(
            """
            import torch

            device = torch.device("tpu")
            same = torch.device("tpu", 0)
            other = torch.device("tpu:0")
            """
        ),
    )
    mended = example(
        """
        import torch

        device = torch.device("tpu")
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one device with an index."""
        if isinstance(node, cst.SimpleString):
            if INDEXED.fullmatch(string_value(node) or ""):
                yield self.hit(node, f"{code(node)} {MESSAGE}")
        elif isinstance(node, cst.FormattedString):
            head = node.parts[0] if len(node.parts) > 1 else None
            if isinstance(head, cst.FormattedStringText) and head.value == "tpu:":
                yield self.hit(node, f"{code(node)} {MESSAGE}")
        elif isinstance(node, cst.Call) and facts.names.of(node.func) in DEVICE:
            is_tpu = len(node.args) == 2 and string_value(node.args[0].value) == "tpu"
            if is_tpu and code(node.args[1].value) not in ("0", "None"):
                yield self.hit(node, f"{code(node)} {MESSAGE}")
