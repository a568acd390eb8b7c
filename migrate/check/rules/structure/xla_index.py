"""The index of a device of XLA: `xla:3`, `device.index`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.words import DEVICE_NAME
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.syntax.tree import code, string_value

TORCHES = frozenset({"torch", "torch_xla"})


class XlaIndex(Hazard):
    """A device of XLA is named with an index, or asked for its index.

    **Why.** A replica sees one device, which is `xla:0` in each of them: `xla:3` raises. The index of
    `torch.device("xla")` is None, and that of a tensor's device is 0 in every replica: what runs under
    `if device.index == 0` runs nowhere, or everywhere.

    **What to do.** `"xla"`, in every replica. `torch_xla.runtime.local_ordinal()` is the index of the replica
    among those of its host.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA705"
    name = "xla-index"
    severity = Severity.ERROR
    spoken_by = ("device-types",)
    nodes = (cst.SimpleString, cst.FormattedString, cst.Attribute)
    words = r"xla|\bindex\b"
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


            def first(device, rank):
                own = torch.device("cuda", rank)
                x = torch.zeros(3, device=own)
                if own.index == 0 or x.device.index == 0:  # XLA705
                    print(own)
                return device.index == 0  # XLA705
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def place(x, devices, text):
                dist.init_process_group("xla", init_method="xla://")
                any_device = torch.device("cuda")
                print(any_device.index is None, devices.index("xla"), text.index)
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
        """Yield one literal, or one question for an index."""
        if isinstance(node, cst.Attribute):
            if node.attr.value == "index" and _is_of_device(node, facts):
                message = (
                    f"`{code(node)}` is None or 0 on XLA, the same in each replica: "
                    "torch_xla.runtime.local_ordinal()"
                )
                yield self.hit(node, message)
            return
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


def _is_of_device(node: cst.Attribute, facts: Facts) -> bool:
    """Whether `node` is the index of a device: by what made it, or compared, by its name."""
    kind = facts.values.device(node)
    if kind is not Kind.UNKNOWN:
        return kind is Kind.INDEX
    device = node.value
    of = device.attr if isinstance(device, cst.Attribute) else device
    if not isinstance(of, cst.Name) or not DEVICE_NAME.fullmatch(of.value):
        return False
    if facts.values.device(device) is Kind.UNKNOWN and facts.names.roots & TORCHES:
        return isinstance(facts.context.parent(node), cst.Comparison) and not _is_none(node, facts)
    return False


def _is_none(node: cst.Attribute, facts: Facts) -> bool:
    """Whether an index is only compared with None."""
    above = facts.context.parent(node)
    return isinstance(above, cst.Comparison) and code(above.comparisons[0].comparator) == "None"
