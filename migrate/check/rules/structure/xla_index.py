"""`xla:3`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.tree.tree import string_value


class XlaIndex(Hazard):
    """A device of XLA is named with an index.

    **Why.** A replica sees one device, which is `xla:0` in each of them: `xla:3` raises.

    **What to do.** `"xla"`, in every replica.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA705"
    name = "xla-index"
    severity = Severity.ERROR
    nodes = (cst.SimpleString, cst.FormattedString)
    words = "xla"
    examples = (
        example(
            """
            import torch


            def place(x, rank):
                return x.to(f"xla:{rank}"), x.to("xla:1")  # XLA705
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def place(x):
                dist.init_process_group("xla", init_method="xla://")
                return x.to("xla"), x.to("xla:0")
            """
        ),
    )
    mended = example(
        """
        import torch


        def place(x):
            return x.to("xla")
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one literal."""
        text = string_value(node)
        if isinstance(node, cst.FormattedString) and len(node.parts) == 2:
            first = node.parts[0]
            indexed = isinstance(first, cst.FormattedStringText) and first.value == "xla:"
        else:
            indexed = (
                text is not None and text[:4] == "xla:" and text[4:].isdigit() and text != "xla:0"
            )
        if indexed:
            yield self.hit(node, 'a replica sees one device: "xla", without an index')
