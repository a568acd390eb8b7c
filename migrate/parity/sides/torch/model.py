"""A torch model of a comparison, in the dtypes and on the devices that it is wanted in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from migrate.parity.ground.last_used import LastUsed
from migrate.parity.ground.settings import Settings
from migrate.parity.sides.torch import call as torch_call
from migrate.parity.sides.torch import variant as torch_variant
from migrate.parity.sides.torch.call import Array, Outputs
from migrate.parity.sides.torch.capture.xla import fetched
from migrate.parity.sides.torch.variant import Kind

# The truth's and the one that is compared with it take turns, input by input.
_VARIANTS = 2


@dataclass
class Variant:
    """The model with some settings.

    Attributes:
        model: a copy.
        unmoved: whether a pass with hooks gave the very outputs of one without.
    """

    model: nn.Module
    unmoved: bool = False
    _compiled: Any = None

    def compiled(self, where: torch.device) -> Any:
        """The model under torch.compile."""
        if self._compiled is None:
            self._compiled = torch_variant.compiled(self.model, where)
        return self._compiled


class TorchModel:
    """The user's module, and what is made of it.

    Args:
        module: the model; it stays as it is, every run has a copy in the dtype and on the device wanted.
        kind: "torch", or "xla" for the same under torch_xla.
        shown: what the user wrote, for messages.
    """

    def __init__(self, module: nn.Module, kind: Kind, shown: str) -> None:
        self.kind: Kind = kind
        self.module = getattr(module, "_orig_mod", module)  # torch.compile's wrapper has no layers
        self.module.eval()
        self.shown = shown
        self._variants: LastUsed[Variant] = LastUsed(_VARIANTS)

    def variant(self, settings: Settings) -> tuple[nn.Module, torch.device]:
        """The model as the settings want it, in eval(), and where it is. The last ones are kept."""
        found, where = self.kept(settings)
        return found.model, where

    def kept(self, settings: Settings) -> tuple[Variant, torch.device]:
        """As `variant`, with what is known of it."""
        where = torch_variant.device(self.kind, settings)

        def make() -> Variant:
            return Variant(torch_variant.variant(self.module, where, settings, shared=True))

        return self._variants.get((settings.dtype, where), make), where

    def outputs(
        self, model: nn.Module, arrays: dict[str, Array], where: torch.device, settings: Settings
    ) -> Outputs:
        """The outputs for one input, on the CPU; nothing is hooked."""
        return self.run(model, model, arrays, where, settings)

    def forget(self) -> None:
        """The copies: the module's weights are others now."""
        self._variants.forget()

    def run(
        self,
        run: Any,
        model: nn.Module,
        arrays: dict[str, Array],
        where: torch.device,
        settings: Settings,
    ) -> Outputs:
        """The outputs of `run`, which is the model or what it was compiled to."""
        parts = []
        for chunk in torch_call.chunks(arrays, settings.batch):
            with torch_variant.running(where, settings):
                given = torch_call.tensors(chunk, where, settings)
                outputs = torch_call.call(run, model, given, self.shown)
            values = fetched([tensor for _, tensor in outputs])
            cpu = [value.cpu() for value in values]
            parts.append([(path, t) for (path, _), t in zip(outputs, cpu, strict=True)])
        return torch_call.joined(parts, self.shown)
