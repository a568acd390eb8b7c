"""Comparisons of a device or a type with CUDA's."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.only_cuda import goes_well
from migrate.reading.facts import Facts
from migrate.reading.tree.tree import string_value


class DeviceType(Hazard):
    """A device or a type is compared with CUDA's.

    **Why.** On XLA `device.type` is "xla" and `x.type()` is "torch.xla.FloatTensor": the branch for the CPU
    is taken, without a word. Where that branch computes the same another way, this is information.

    **What to do.** `device.type != "cpu"`; `x.dtype == torch.float16` instead of a name of a type.
    """

    code = "XLA702"
    name = "device-type"
    severity = Severity.WARNING
    spoken_by = ("device-types", "device", "cuda-available")
    nodes = (cst.Comparison,)
    examples = (
        example(
            """
            import torch


            def context(device, x):
                if device.type == "cuda":  # XLA702 info
                    torch.backends.cudnn.benchmark = True
                if device.type == "cuda":  # XLA702
                    x = x.pin_memory().to(device)
                fused = hasattr(torch, "fused") and device.type == "cuda"  # XLA702 info
                if device.type != "cuda":  # XLA702 info
                    return x.mean() if fused else x
                if x.device.type != "cuda":  # XLA702
                    raise ValueError("no CUDA")
                if "cuda" in str(device) or device == "cuda":  # XLA702 info
                    return x.type() == "torch.cuda.HalfTensor"  # XLA702
            """
        ),
        example(
            """
            import torch


            def context(device, backend, accelerators):
                if device.type == "cpu" or device.type != "cpu":
                    return backend == "cudnn"
                return device in accelerators
            """
        ),
    )
    mended = example(
        """
        import torch


        def context(device, x):
            if device.type != "cpu":
                print("on", device)
            return x.dtype == torch.bfloat16
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one comparison."""
        assert isinstance(node, cst.Comparison)
        if "torch" not in facts.names.roots:
            return
        for value in (node.left, *(target.comparator for target in node.comparisons)):
            parts = _parts(value)
            text = next((t for p in parts if (t := string_value(p)) and _names_cuda(t)), None)
            if text is not None:
                what = f'a comparison with "{text}"'
                message = f'{what} is False on XLA: ask for "cpu", or for a dtype'
                severity = Severity.INFO if goes_well(node, facts) else None
                yield self.hit(node, message, severity)
                return


def _names_cuda(text: str) -> bool:
    return text == "cuda" or text.startswith(("cuda:", "torch.cuda."))


def _parts(value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the elements of a list, or the value itself."""
    if isinstance(value, cst.Tuple | cst.List | cst.Set):
        return [element.value for element in value.elements]
    return [value]
