"""The index of a device: `device.index`, `x.get_device()`, `xla:3`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.words import DEVICE_NAME
from migrate.model.calls.devices import PARTS_TEXT
from migrate.model.calls.kind import ACCELERATORS, Kind
from migrate.reading.facts import Facts, facts_of
from migrate.reading.values.devices import is_move
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, string_value

TORCHES = frozenset({"torch", "torch_xla"})


class XlaIndex(Rule):
    """Ask the runtime which replica of its host this is, not its device for an index.

    **Why.** A replica sees one device, which is `xla:0` in each of them: `xla:3` raises. The index of
    `torch.device("xla")` is None, and that of a tensor's device is 0 in every replica: what runs under
    `if device.index == 0` runs nowhere, or everywhere.

    **What it does.** `device.index` and `x.get_device()`, of a device that the script moves to, become
    `torch_xla.runtime.local_ordinal()`, the index of the replica among those of its host. So does
    `int(device.split(":")[1])`: the text `"xla"` has no index.

    **Left alone.** An index that is only handed on as a device (`x.to(device.index)`, `device_ids=[…]`):
    other rules speak of it.

    **Reported.** The index of what is only named like a device, where it is compared with a number;
    `"xla:3"`, which is `"xla"` in every replica.

    Source: torch_xla 2.9, measured.
    """

    name = "xla-index"
    code = "XLA705"
    nodes = (cst.Attribute, cst.Call, cst.SimpleString, cst.FormattedString)
    words = r"xla|\bindex\b|get_device|split|partition"
    examples = (
        rewritten(
            """
            import torch


            def first(rank):
                own = torch.device('cuda', rank)
                x = torch.zeros(3, device=own)
                return own.index == 0 and x.device.index == 0


            def seed(rank):
                device = f"cuda:{rank}"
                return torch.ones(2).to(device) * int(device.split(":")[1])
            """,
            """
            import torch
            import torch_xla.runtime as xr


            def first(rank):
                own = torch.device('xla')
                x = torch.zeros(3, device=own)
                return xr.local_ordinal() == 0 and xr.local_ordinal() == 0


            def seed(rank):
                device = "xla"
                return torch.ones(2).to(device) * xr.local_ordinal()
            """,
        ),
        left_alone(
            """
            import torch


            def place(devices, text, some_device):
                print(some_device.index is None, devices.index("xla"), text.index)
            """
        ),
        reported(
            """
            import torch


            def place(x):
                return x.to("xla:1")
            """,
            "sees one device",
        ),
        checked(
            """
            import torch


            def place(x, rank):
                return x.to(f"xla:{rank}"), x.to("xla:1")  # XLA705
            """
        ),
        checked(
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
        checked(
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

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one question for an index, or the finding; or the finding on one literal."""
        if type(node) is cst.SimpleString or type(node) is cst.FormattedString:
            if _has_index(node):
                yield from self.report(node, 'a replica sees one device: "xla", without an index')
            return
        assert isinstance(node, cst.Attribute | cst.Call)
        if isinstance(node, cst.Call) and _takes_index_of_text(node, context):
            wrong = f"`{code(node)}`: the text `xla` has no index"
            yield self._edit(node, wrong, context)
            return
        asked = node.func if isinstance(node, cst.Call) else node
        word = "get_device" if isinstance(node, cst.Call) else "index"
        if not isinstance(asked, cst.Attribute) or asked.attr.value != word:
            return
        wrong = (
            f"`{code(node)}` is None or 0 on XLA, the same in each replica: "
            "torch_xla.runtime.local_ordinal()"
        )
        if context.devices.kind(node) is Kind.INDEX:
            if not _is_handed_on(node, context):
                yield self._edit(node, wrong, context)
        elif isinstance(node, cst.Attribute) and _is_of_device(node, facts_of(context)):
            yield from self.report(node, wrong)

    def _edit(self, node: cst.Attribute | cst.Call, wrong: str, context: Workspace) -> Edit:
        """Return the edit of `device.index`."""
        local = context.vocabulary.expression("local rank")
        message = (
            f"`{code(node)}` → {context.vocabulary.say('local rank')}: a replica's device is the "
            "only one that it sees"
        )
        return self.edit(node, lambda _: local, message, wrong=wrong)


def _has_index(node: cst.SimpleString | cst.FormattedString) -> bool:
    """Whether a text names a device of XLA with an index that it does not have."""
    if isinstance(node, cst.FormattedString):
        first = node.parts[0] if len(node.parts) == 2 else None
        return isinstance(first, cst.FormattedStringText) and first.value == "xla:"
    text = string_value(node) or ""
    return text.startswith("xla:") and text[4:].isdigit() and text != "xla:0"


def _takes_index_of_text(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` is `int(device.split(":")[1])` of a text that names a device."""
    if not isinstance(call.func, cst.Name) or call.func.value != "int" or len(call.args) != 1:
        return False
    item = call.args[0].value
    parts = item.value if isinstance(item, cst.Subscript) else None
    if not isinstance(parts, cst.Call) or not isinstance(parts.func, cst.Attribute):
        return False
    separator = parts.args[0].value if parts.args else None
    if parts.func.attr.value not in PARTS_TEXT or string_value(separator) != ":":
        return False
    return context.devices.kind(parts.func.value) in ACCELERATORS


def _is_handed_on(node: cst.BaseExpression, context: Workspace) -> bool:
    """Whether an index is passed to a call that other rules handle: a move, DistributedDataParallel."""
    for above in context.ancestors(node):
        if isinstance(above, cst.Call):
            name = context.qualified_name(above.func) or ""
            return name.startswith("torch.") or is_move(above, context)
        if isinstance(above, cst.BaseStatement | cst.Comparison | cst.FormattedStringExpression):
            return isinstance(above, cst.FormattedStringExpression) and _is_cuda(above, context)
    return False


def _is_cuda(part: cst.FormattedStringExpression, context: Workspace) -> bool:
    """Whether `part` is in `f"cuda:{device.index}"`."""
    return context.devices.kind(context.parent(part)) is Kind.CUDA


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
