"""A side as the comparison sees it: what a `Runner` does, asked for with plain values.

The model is in a process of its own (`process.SideProcess`), or, in tests, in this one (`InProcess`).
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from migrate.compiler.program import Program
from migrate.parity.dump.dump import Facts
from migrate.parity.ground.alignment import Alignment
from migrate.parity.ground.results import Check, Section
from migrate.parity.ground.settings import Settings
from migrate.parity.inputs.set import InputSet, read_inputs
from migrate.parity.sides.runner import (
    Forced,
    Generated,
    Kind,
    Reference,
    Runner,
    Training,
)


class Side(ABC):
    """One of the two that are compared.

    Args:
        work: a folder for what is passed on files.

    Attributes:
        kind: what its model is.
        takes_turns: whether it starts anew after the other one ran.
    """

    kind: Kind
    takes_turns = False

    def __init__(self, work: Path) -> None:
        self._folder = work
        self._passed = 0

    @abstractmethod
    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request (`child.Child` has a method for each) and give the answer."""

    def facts(self, settings: Settings) -> Facts:
        """See `Runner`."""
        value = self.ask({"do": "facts", "settings": settings.to_dict()})
        return Facts(**value | {"notes": tuple(value["notes"])})

    def arguments(self) -> tuple[tuple[str, bool], ...]:
        """See `Runner`."""
        return tuple((name, required) for name, required in self.ask({"do": "arguments"}))

    def suggest_inputs(self, count: int, seed: int, folder: Path) -> InputSet:
        """See `Runner`."""
        self.ask({"do": "suggest_inputs", "count": count, "seed": seed, "folder": str(folder)})
        return read_inputs(folder)

    def prepare(self, settings: Settings, inputs: InputSet) -> None:
        """See `Runner`."""
        self.ask({"do": "prepare", "settings": settings.to_dict(), "inputs": str(inputs.folder)})

    def save_weights(self, file: Path) -> None:
        """See `Runner`."""
        self.ask({"do": "save_weights", "file": str(file)})

    def load_weights(self, file: Path) -> None:
        """See `Runner`."""
        self.ask({"do": "load_weights", "file": str(file)})

    def capture_into(
        self,
        settings: Settings,
        inputs: InputSet,
        folder: Path,
        *,
        layers: bool = True,
        forced: Forced | None = None,
        measured: Reference | None = None,
        numbers: Sequence[int] | None = None,
    ) -> float:
        """See `sides.capture.capture_into`; `measured` is `forced`, where both are given."""
        reference, passed = forced or measured, None
        if reference is not None:
            alignment = self._written(reference.alignment)
            passed = {"truth": str(reference.truth), "alignment": str(alignment)}
        seconds: float = self.ask(
            {
                "do": "capture",
                "settings": settings.to_dict(),
                "inputs": str(inputs.folder),
                "folder": str(folder),
                "layers": layers,
                "reference": passed,
                "forced": forced is not None,
                "measured": measured is not None,
                "numbers": numbers,
            }
        )
        return seconds

    def gradients(self, settings: Settings, inputs: InputSet, cotangents: Path, into: Path) -> None:
        """See `Runner`."""
        self.ask(
            {
                "do": "gradients",
                "settings": settings.to_dict(),
                "inputs": str(inputs.folder),
                "cotangents": str(cotangents),
                "into": str(into),
            }
        )

    def train(self, settings: Settings, inputs: InputSet, training: Training) -> list[float]:
        """See `Runner`."""
        losses: list[float] = self.ask(
            {
                "do": "train",
                "settings": settings.to_dict(),
                "inputs": str(inputs.folder),
                "training": dataclasses.asdict(training) | {"targets": str(training.targets)},
            }
        )
        return losses

    def generate(self, settings: Settings, inputs: InputSet, tokens: int, output: str) -> Generated:
        """See `Runner`."""
        value = self.ask(
            {
                "do": "generate",
                "settings": settings.to_dict(),
                "inputs": str(inputs.folder),
                "tokens": tokens,
                "output": output,
            }
        )
        return Generated(_tuples(value["tokens"]), _tuples(value["margins"]))

    def approximate_top_k(self, settings: Settings, inputs: InputSet) -> Section | None:
        """The approximate top-k's of a JAX side, measured on its device; None: it has none, or is torch's."""
        if self.kind not in ("linen", "nnx", "jax"):
            return None
        value = self.ask(
            {
                "do": "approximate_top_k",
                "settings": settings.to_dict(),
                "inputs": str(inputs.folder),
            }
        )
        checks = tuple(Check(**check) for check in value["checks"])
        return Section(value["name"], checks, notes=tuple(value["notes"])) if checks else None

    def program(self, settings: Settings, inputs: InputSet) -> Program:
        """What a compiler gets of the model, on the first input."""
        file = self._folder / f"{id(self)}.program"
        value = self.ask(
            {
                "do": "program",
                "settings": settings.to_dict(),
                "inputs": str(inputs.folder),
                "file": str(file),
            }
        )
        return Program(value["name"], value["format"], file.read_bytes())

    def _written(self, alignment: Alignment) -> Path:
        self._passed += 1
        file = self._folder / f"{id(self)}-{self._passed}.alignment.json"
        file.write_text(alignment.to_json())
        return file


class InProcess(Side):
    """A side whose model is in this process.

    Args:
        runner: the model.
        work: as of `Side`.
    """

    def __init__(self, runner: Runner, work: Path) -> None:
        from migrate.parity.sides.child import Child

        super().__init__(work)
        self.kind = runner.kind
        self._child = Child(runner)

    def ask(self, request: dict[str, Any]) -> Any:
        """See `Side`; what passes is what would pass between processes."""
        given = json.loads(json.dumps(request))
        return json.loads(json.dumps(getattr(self._child, given["do"])(given)))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
