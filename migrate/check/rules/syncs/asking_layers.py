"""Hazard of layers and losses of torch that read values themselves."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import bind, code, is_none, keyword

MODULES = ("torch.nn", "torch.nn.modules", "torch.nn.modules.transformer")
# Parameters of each layer's call, and its masks with the arguments that mark them as causal.
CALLS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, str], ...]]] = {
    "TransformerEncoder": (
        ("src", "mask", "src_key_padding_mask", "is_causal"),
        (("mask", "is_causal"),),
    ),
    "TransformerDecoder": (
        (
            *("tgt", "memory", "tgt_mask", "memory_mask", "tgt_key_padding_mask"),
            *("memory_key_padding_mask", "tgt_is_causal", "memory_is_causal"),
        ),
        (("tgt_mask", "tgt_is_causal"),),
    ),
    "Transformer": (
        (
            *("src", "tgt", "src_mask", "tgt_mask", "memory_mask", "src_key_padding_mask"),
            *("tgt_key_padding_mask", "memory_key_padding_mask", "src_is_causal", "tgt_is_causal"),
            "memory_is_causal",
        ),
        (("src_mask", "src_is_causal"), ("tgt_mask", "tgt_is_causal")),
    ),
}
BATCH_NORMS = frozenset({"BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"})
GAUSSIAN = "torch.nn.functional.gaussian_nll_loss"
GAUSSIAN_LOSS = "GaussianNLLLoss"


class AskingLayers(Hazard):
    """A layer or loss of torch reads a value of the device at each call.

    **Why.** `nn.TransformerEncoder`, `nn.TransformerDecoder` and `nn.Transformer` compare a mask with a
    causal one, unless `is_causal` (`tgt_is_causal`) says whether it is. `gaussian_nll_loss` asks whether a
    variance is negative. A batch normalization with `momentum=None` asks for its number of batches. On XLA
    each of these cuts the graph of the step in two, and the host waits for the device.

    **What to do.** `encoder(x, mask=mask, is_causal=False)` uses the mask as it is; `is_causal=True` is for
    a causal one. Write the loss out: `0.5 * (v.log() + (x - y) ** 2 / v).mean()`, `v = var.clamp(min=eps)`.
    Give `momentum` a number.

    Source: torch 2.9 on torch_xla 2.9, counters `aten::_local_scalar_dense` (measured).
    """

    code = "XLA216"
    name = "asking-layers"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    words = spelled({*CALLS, *BATCH_NORMS, GAUSSIAN, GAUSSIAN_LOSS})
    examples = (
        example(
            """
            import torch
            from torch import nn
            import torch.nn.functional as F


            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2)
                    self.both = nn.Transformer(8, 2)
                    self.norm = nn.BatchNorm1d(8, momentum=None)  # XLA216
                    self.loss = nn.GaussianNLLLoss()

                def forward(self, x, y, var, mask):
                    x = self.encoder(x, mask=mask)  # XLA216
                    x = self.both(x, y, tgt_mask=mask)  # XLA216
                    return self.loss(x, y, var) + F.gaussian_nll_loss(x, y, var)  # XLA216 # XLA216
            """
        ),
        example(
            """
            import torch
            from torch import nn


            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    layer = nn.TransformerEncoderLayer(8, 2)
                    self.encoder, self.layer = nn.TransformerEncoder(layer, 2), layer
                    self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2), 2)
                    self.norm = nn.BatchNorm1d(8, momentum=0.1)

                def forward(self, x, mask, padding):
                    x = self.encoder(x, mask=mask, is_causal=True) + self.encoder(x, mask=None)
                    x = self.encoder(x, src_key_padding_mask=padding) + self.layer(x, src_mask=mask)
                    return self.decoder(x, x, mask, tgt_is_causal=False)


            def shown(scheduler, x, mask):
                return scheduler.encoder(x, mask=mask)
            """
        ),
    )
    mended = example(
        """
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2)

            def forward(self, x, mask):
                return self.encoder(x, mask=mask, is_causal=True)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield a call that reads: of a transformer in a step, of a loss, or of a normalization."""
        assert isinstance(node, cst.Call)
        layer = _layer(node.func, facts)
        if layer in BATCH_NORMS:
            momentum = keyword(node, "momentum")
            if momentum is not None and is_none(momentum.value):
                message = "a batch normalization with momentum=None reads its number of batches at each call"
                yield self.hit(node, f"{message}: give momentum a number")
            return
        if not facts.steps.inside(node):
            return
        if facts.names.of(node.func) == GAUSSIAN or self._made(node, facts) == GAUSSIAN_LOSS:
            message = "gaussian_nll_loss asks whether a variance is negative, and cuts the graph"
            yield self.hit(node, f"{message}: write the loss out")
            return
        parameters, pairs = CALLS.get(self._made(node, facts), ((), ()))
        bound = bind(node, parameters) or {}
        for mask, causal in pairs:
            if _is_given(bound.get(mask)) and not _is_given(bound.get(causal)):
                message = (
                    f"{code(node.func)} compares `{mask}` with a causal one, and cuts the graph"
                )
                yield self.hit(node, f"{message}: {causal}=False uses it as it is")
                return

    def _made(self, call: cst.Call, facts: Facts) -> str:
        """Return the class of torch.nn of the layer that `call` calls, if all its known values have one."""
        if not isinstance(call.func, cst.Name | cst.Attribute):
            return ""
        values = facts.values.given_to(call.func)
        classes = {
            _layer(value.func, facts) if isinstance(value, cst.Call) else "" for value in values
        }
        return classes.pop() if len(classes) == 1 else ""


def _layer(func: cst.BaseExpression, facts: Facts) -> str:
    """Return the class of torch.nn that `func` names. Empty if it names none."""
    package, _, last = (facts.names.of(func) or "").rpartition(".")
    return last if package.startswith(MODULES) else ""


def _is_given(arg: cst.Arg | None) -> bool:
    return arg is not None and not is_none(arg.value)
