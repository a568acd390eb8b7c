"""Base class of patterns: page, examples and the variants to try."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.scene import Scene

Array = np.ndarray[Any, Any]
# (the variant's output, the side's output) → the array to compare with the side; None: does not apply.
Adjust = Callable[[Array, Array], Array | None]


@dataclass(frozen=True)
class Variant:
    """Variant of the computation of a layer.

    Attributes:
        text: the sentence about it; `{side}` stands for the side, `{where}` for the tensors that show it.
        change: changes the computation of the truth's layer while it is entered.
        adjust: applied to the layer's results afterwards.
        evidence: the evidence, where it is not the distance between the two.
    """

    text: str
    change: Callable[[], AbstractContextManager[Any]] = nullcontext
    adjust: Adjust | None = None
    evidence: str = ""


@dataclass(frozen=True)
class FaultExample:
    """Module and its faulty twin, as an example of a pattern.

    Attributes:
        truth: creates the module.
        faulty: creates the twin from a copy of the module, which it may change.
        inputs: creates the arguments; called several times.
        says: words that the explanation must contain.
        layer: name of the layer that diverges.
        locally: whether the layer diverges when fed with the truth's inputs.
    """

    truth: Callable[[], nn.Module]
    faulty: Callable[[nn.Module], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    says: str
    layer: str = ""
    locally: bool = True


class Pattern(ABC):
    """Known way in which two implementations differ.

    The docstring is its page (first line: the title); it describes the difference and its remedy. A subclass
    without a docstring or an example raises an error when it is defined.

    Attributes:
        name: name of the page.
        rank: among patterns that explain a difference equally well the lowest rank wins: 0 for a setting or a
            function, 1 for weights in another order, 2 for fitted values.
        examples: modules and their faulty twins.
    """

    name: ClassVar[str]
    rank: ClassVar[int] = 0
    examples: ClassVar[tuple[FaultExample, ...]]

    def __init_subclass__(cls) -> None:
        page = cls.__doc__ or ""
        if missing := [part for part in ("**What it is.**", "**What to do.**") if part not in page]:
            raise TypeError(
                f"cause {cls.__name__}: its docstring does not say {', '.join(missing)}"
            )
        if not getattr(cls, "examples", ()):
            raise TypeError(f"cause {cls.name} has no example")

    @property
    def title(self) -> str:
        """The first line of the page."""
        return inspect.cleandoc(self.__doc__ or "").splitlines()[0]

    @abstractmethod
    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the variants to try; nothing where the pattern does not apply to the layer."""

    def suspected(self, scene: Scene) -> str:
        """Describe a suspicion where no variant fits, with `{side}` for the side; "" if there is none."""
        return ""

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Describe a difference in the settings alone, with `{side}` for the side; "" if there is none."""
        return ""


def normal(*shape: int, scale: float = 1.0, mean: float = 0.0) -> Callable[[], tuple[Any, ...]]:
    """Inputs of an example: a tensor from a normal distribution."""
    return lambda: (mean + scale * torch.randn(shape, dtype=torch.float64),)


def loaded(module: nn.Module, twin: nn.Module) -> nn.Module:
    """Load the twin's weights into a module, as far as it has them."""
    module.load_state_dict(twin.state_dict(), strict=False)
    return module
