"""Subject of the proof at a second size: a port, its original, and the original's construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.graph.writing.original.elsewhere import values_elsewhere
from migrate.port.sizes.construction import Construction
from migrate.port.sizes.flax import PortAtSize, port_at
from migrate.port.sizes.instance import SEED, SizeChange, SizedModel, built
from migrate.port.sizes.results import SecondSize


@dataclass(frozen=True)
class SizeQuestion:
    """A port, and the means to build its original with other arguments.

    Attributes:
        port: what the compiler gave.
        folder: folder of the port.
        construction: how the original was made.
        base: the original, built again with the same arguments.
        shown: the model, for messages.
    """

    port: Any
    folder: Path
    construction: Construction
    base: SizedModel
    shown: str

    def built(
        self, changes: tuple[SizeChange, ...], seed: int = SEED, *, computes: bool = True
    ) -> SizedModel | None:
        """The original with these changes, or None if it refuses them; see `instance.built`."""
        inputs = self.base.inputs
        return built(self.construction, inputs, changes, self.shown, seed, computes=computes)

    def second(self, changes: tuple[SizeChange, ...]) -> SecondSize | None:
        """The size with these changes, or None if the original refuses them."""
        instance = self.built(changes)
        if instance is None:
            return None

        def build(seed: int) -> Any:
            return self.built(changes, seed).module  # type: ignore[union-attr]

        return SecondSize(build, self.settings(instance), instance.inputs)

    def port_at(self, package: Any, settings: Mapping[str, Any], other: SizedModel) -> PortAtSize:
        """The port with the settings of another instance, and with its weights.

        Raises:
            PortRefusesError: its mapping or its configuration refuses it.
        """
        names = self.port.model_class, self.port.config_class
        return port_at(package, self.folder, names, settings, other.module, other.inputs)

    def settings(self, other: SizedModel) -> Mapping[str, Any]:
        """The settings of the port at the size of another instance."""
        own = self.base.module, self.construction.arguments
        there = other.module, other.arguments
        moved = values_elsewhere(self.port.settings, self.port.sources, own, there)
        return {**self.port.settings, **moved}
