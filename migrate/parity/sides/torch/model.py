"""Torch model of a comparison, in the dtypes and on the devices that are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn

from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.last_used import LastUsed
from migrate.parity.ground.settings import SideSettings
from migrate.parity.sides.references import REFERENCE
from migrate.parity.sides.torch import call as torch_call
from migrate.parity.sides.torch import variant as torch_variant
from migrate.parity.sides.torch.call import Array, Outputs
from migrate.parity.sides.torch.capture.xla import fetched
from migrate.parity.sides.torch.float64 import Extent, widen_layers
from migrate.parity.sides.torch.variant import Kind

Answer = TypeVar("Answer")
_EXTENTS: tuple[Extent, ...] = ("throughout", "layers", "none")
_NARROWER = {
    "layers": f"{REFERENCE} with the layers of torch.nn in float64",
    "none": REFERENCE,
}

# The truth and the model that is compared with it take turns, input by input.
_VARIANTS = 2


@dataclass
class ModelVariant:
    """Model with some settings.

    Attributes:
        model: a copy.
        unmoved: whether a pass with hooks returned the same outputs as a pass without hooks.
    """

    model: nn.Module
    unmoved: bool = False
    _compiled: Any = None

    def compiled(self, where: torch.device) -> Any:
        """Model under torch.compile."""
        if self._compiled is None:
            self._compiled = torch_variant.compiled(self.model, where)
        return self._compiled


class TorchModel:
    """Module of the user, and its copies.

    Args:
        module: the model; it stays unchanged, every run has a copy with the dtype and on the device it needs.
        kind: "torch", or "xla" for the same under torch_xla, "tpu" under torch_tpu.
        shown: the user's name for it, for messages.
    """

    def __init__(self, module: nn.Module, kind: Kind, shown: str) -> None:
        self.kind: Kind = kind
        self.module = getattr(module, "_orig_mod", module)  # torch.compile's wrapper has no layers
        self.module.eval()
        self.shown = shown
        # Dtype of the float64 reference, and why it is not float64 throughout.
        self._extent: Extent = "throughout"
        self._why = ""
        # Whether its forward draws random numbers; None: not yet known.
        self._draws: bool | None = None
        self._variants: LastUsed[ModelVariant] = LastUsed(_VARIANTS)

    def variant(self, settings: SideSettings) -> tuple[nn.Module, torch.device]:
        """Model with the settings, in eval(), and its device. The last models are kept."""
        kept_variant, where = self.kept(settings)
        return kept_variant.model, where

    def kept(self, settings: SideSettings) -> tuple[ModelVariant, torch.device]:
        """Return the result of `variant` with the facts known about it."""
        where = torch_variant.device(self.kind, settings)

        def make() -> ModelVariant:
            return ModelVariant(self.copy(settings, where, shared=not settings.moved))

        return self._variants.get((settings.dtype, where, settings.moved), make), where

    def copy(
        self, settings: SideSettings, where: torch.device, *, shared: bool = False
    ) -> nn.Module:
        """Copy of the model with the settings, unshared; see `torch_variant.variant`."""
        how = self.effective(settings)
        model = torch_variant.variant(self.module, where, how, shared=shared)
        if how != settings and self._extent == "layers":
            widen_layers(model)
        return model

    def effective(self, settings: SideSettings) -> SideSettings:
        """Settings in which the model really runs: some models cannot use float64."""
        narrow = settings.dtype == "float64" and self._extent != "throughout"
        return replace(settings, dtype="float32") if narrow else settings

    @property
    def narrowed(self) -> str:
        """Note on how the float64 reference really runs, and why; "" if it is float64 throughout."""
        return f"{_NARROWER[self._extent]} ({self._why})" if self._why else ""

    def widest(self, settings: SideSettings, answer: Callable[[], Answer]) -> Answer:
        """Return the result of `answer`; if it raises in float64, run it again with less float64.

        Raises:
            ParityError: it raises in float32 too.
        """
        while True:
            try:
                return answer()
            except ParityError as error:
                later = _EXTENTS[_EXTENTS.index(self._extent) + 1 :]
                if settings.dtype != "float64" or not later:
                    raise
                self._extent = later[0]
                self._why = self._why or error.what.removeprefix(f"{self.shown}: ")
                self.forget()

    def draws(self, settings: SideSettings, arrays: Mapping[str, Array]) -> bool:
        """Whether its forward draws from torch's generator on the CPU; the first call runs the model
        once.
        """
        if self._draws is None:
            settings = replace(settings, device="cpu", dtype="float32", compiled=False, batch=None)
            model, where = self.variant(settings)
            with torch.no_grad(), torch_variant.running(where, settings):
                before = torch.get_rng_state()
                torch_call.call(
                    model, model, torch_call.tensors(arrays, where, settings), self.shown
                )
                self._draws = not torch.equal(before, torch.get_rng_state())
        return self._draws

    def outputs(
        self,
        model: nn.Module,
        arrays: dict[str, Array],
        where: torch.device,
        settings: SideSettings,
    ) -> Outputs:
        """Return the outputs for one input, on the CPU, without hooks."""
        return self.run(model, model, arrays, where, settings)

    def forget(self) -> None:
        """Drop the copies, because the module's weights have changed."""
        self._variants.forget()

    def run(
        self,
        run: Any,
        model: nn.Module,
        arrays: dict[str, Array],
        where: torch.device,
        settings: SideSettings,
    ) -> Outputs:
        """Return the outputs of `run`, which is the model or its compiled form."""
        parts = []
        settings = self.effective(settings)
        for chunk in torch_call.chunks(arrays, settings.batch):
            with torch_variant.running(where, settings, draws=bool(self._draws)):
                tensors = torch_call.tensors(chunk, where, settings)
                before = torch.get_rng_state() if self._draws is None else None
                outputs = torch_call.call(run, model, tensors, self.shown)
                if before is not None:
                    self._draws = not torch.equal(before, torch.get_rng_state())
                    if self._draws:  # once more, with the draws of the comparison
                        return self.run(run, model, arrays, where, settings)
            values = fetched([tensor for _, tensor in outputs])
            cpu = [value.cpu() for value in values]
            parts.append([(path, t) for (path, _), t in zip(outputs, cpu, strict=True)])
        return torch_call.joined(parts, self.shown)
