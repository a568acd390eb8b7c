"""The module of torch that is named like the type of a device: `getattr(torch, device.type)`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.words import DEVICE_NAME
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.only_cuda import only_with_cuda
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.syntax.tree import code, string_value

TYPES = frozenset({Kind.CUDA, Kind.XLA})


class DeviceModule(Hazard):
    """The module of torch for a type of device is asked for by that type.

    **Why.** There is `torch.cuda`, and no `torch.xla`: `getattr(torch, device.type)` raises an
    AttributeError on XLA, and `torch.get_device_module(device)` a RuntimeError. Where a test of the type
    lets only CUDA come there, what follows (a seed, a wait) does not happen on XLA.

    **What to do.** What the message says: `torch_xla.manual_seed(seed)` for `manual_seed`,
    `torch_xla.sync(wait=True)` for `synchronize`, under a test of the type.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA865"
    name = "device-module"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = "getattr|get_device_module"
    examples = (
        example(
            """
            import torch


            def seed(device_type, device, value):
                if device_type in ("xla", "mps"):
                    getattr(torch, device_type).manual_seed(value)  # XLA865
                module = torch.get_device_module(torch.device("cuda"))  # XLA865
                module.synchronize()
                getattr(torch, device.type).synchronize(device)  # XLA865
                return getattr(torch, device.type, None)  # XLA865
            """
        ),
        example(
            """
            import torch


            def seed(dtype, name, device, value):
                if device.type == "cuda":
                    getattr(torch, device.type).manual_seed(value)
                try:
                    getattr(torch, device.type).synchronize()
                except AttributeError:
                    pass
                getattr(torch, "cpu").synchronize()
                return getattr(torch, dtype), getattr(torch.nn, name)(2, 2)
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch_xla


        def seed(device_type, value):
            if device_type == "xla":
                torch_xla.manual_seed(value)
            elif device_type == "mps":
                torch.mps.manual_seed(value)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call that asks for the module."""
        assert isinstance(node, cst.Call)
        asked = _asked(node, facts)
        if asked is None or _is_tried(node, facts) or only_with_cuda(node, facts):
            return
        used = facts.context.parent(node)
        member = used.attr.value if isinstance(used, cst.Attribute) else ""
        if not _is_type(asked, member, facts):
            return
        entry = catalogue.of(f"torch.cuda.{member}") if member else None
        instead = entry.native if entry is not None else _INSTEAD
        yield self.hit(
            node, f"`{code(node)}`: torch has no module for 'xla', this raises on XLA: {instead}"
        )


_INSTEAD = (
    "torch_xla.manual_seed(seed) seeds, torch_xla.sync(wait=True) waits, xm.get_memory_info() "
    "has the memory of a TPU and raises on the CPU"
)


def _asked(call: cst.Call, facts: Facts) -> cst.BaseExpression | None:
    """Return the type, or device, whose module `call` asks for."""
    name = facts.context.qualified_name(call.func)
    if name == "torch.get_device_module":
        return call.args[0].value if call.args else None
    is_getattr = isinstance(call.func, cst.Name) and call.func.value == "getattr"
    if not is_getattr or len(call.args) < 2:
        return None
    module = facts.context.qualified_name(call.args[0].value)
    return call.args[1].value if module == "torch" else None


def _is_type(asked: cst.BaseExpression, member: str, facts: Facts) -> bool:
    """Whether `asked` may be the type of an accelerator: by what made it, by its use, else by its name."""
    kind = facts.values.device(asked)
    if kind is not Kind.UNKNOWN or string_value(asked) is not None:
        return kind in TYPES
    if member and catalogue.of(f"torch.cuda.{member}") is not None:
        return True
    if isinstance(asked, cst.Attribute):
        of = asked.value
        last = of.attr if isinstance(of, cst.Attribute) else of
        asked = last if asked.attr.value == "type" else asked.attr
    return isinstance(asked, cst.Name) and DEVICE_NAME.fullmatch(asked.value) is not None


def _is_tried(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether an exception of `node` is caught, or it is only asked whether there is such a module."""
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.Try) and above.handlers:
            return True
        if isinstance(above, cst.FunctionDef):
            return False
    return False
