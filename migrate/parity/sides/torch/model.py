"""A torch model of a comparison, in the dtypes and on the devices that it is wanted in."""

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
        # How the float64 reference runs, and why it is not float64 throughout.
        self._extent: Extent = "throughout"
        self._why = ""
        # Whether its forward draws random numbers; None: nobody knows yet.
        self._draws: bool | None = None
        self._variants: LastUsed[Variant] = LastUsed(_VARIANTS)

    def variant(self, settings: SideSettings) -> tuple[nn.Module, torch.device]:
        """The model as the settings want it, in eval(), and where it is. The last ones are kept."""
        found, where = self.kept(settings)
        return found.model, where

    def kept(self, settings: SideSettings) -> tuple[Variant, torch.device]:
        """As `variant`, with what is known of it."""
        where = torch_variant.device(self.kind, settings)

        def make() -> Variant:
            return Variant(self.copy(settings, where, shared=True))

        return self._variants.get((settings.dtype, where), make), where

    def copy(
        self, settings: SideSettings, where: torch.device, *, shared: bool = False
    ) -> nn.Module:
        """A copy of the model as the settings want it, of nobody else's; see `torch_variant.variant`."""
        how = self.effective(settings)
        model = torch_variant.variant(self.module, where, how, shared=shared)
        if how != settings and self._extent == "layers":
            widen_layers(model)
        return model

    def effective(self, settings: SideSettings) -> SideSettings:
        """The settings in which the model really runs: not all take float64."""
        narrow = settings.dtype == "float64" and self._extent != "throughout"
        return replace(settings, dtype="float32") if narrow else settings

    @property
    def narrowed(self) -> str:
        """How the float64 reference really runs, and why; "" where it is float64 throughout."""
        return f"{_NARROWER[self._extent]} ({self._why})" if self._why else ""

    def widest(self, settings: SideSettings, answer: Callable[[], Answer]) -> Answer:
        """What `answer` gives; a reference that raises in float64 is run again in less of it.

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
        """Whether its forward draws from torch's generator on the CPU; the first time it runs once."""
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
        settings: SideSettings,
    ) -> Outputs:
        """The outputs of `run`, which is the model or what it was compiled to."""
        parts = []
        settings = self.effective(settings)
        for chunk in torch_call.chunks(arrays, settings.batch):
            with torch_variant.running(where, settings, draws=bool(self._draws)):
                given = torch_call.tensors(chunk, where, settings)
                before = torch.get_rng_state() if self._draws is None else None
                outputs = torch_call.call(run, model, given, self.shown)
                if before is not None:
                    self._draws = not torch.equal(before, torch.get_rng_state())
                    if self._draws:  # once more, with the draws of the comparison
                        return self.run(run, model, arrays, where, settings)
            values = fetched([tensor for _, tensor in outputs])
            cpu = [value.cpu() for value in values]
            parts.append([(path, t) for (path, _), t in zip(outputs, cpu, strict=True)])
        return torch_call.joined(parts, self.shown)
