"""What a pattern is: its page, its examples, and the variants that are tried for it."""

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
# (what the variant gives, what the side gives) → what is held against the side; None: does not apply.
Adjust = Callable[[Array, Array], Array | None]


@dataclass(frozen=True)
class Variant:
    """One way in which the layer may be computed otherwise.

    Attributes:
        text: the sentence about it; `{side}` stands for the side, `{where}` for what it is seen in.
        change: makes the truth's layer compute so, while it is entered.
        adjust: what is done to its results after that.
        evidence: what shows it, where that is not how near the two come.
    """

    text: str
    change: Callable[[], AbstractContextManager[Any]] = nullcontext
    adjust: Adjust | None = None
    evidence: str = ""


@dataclass(frozen=True)
class Example:
    """A module, and its faulty twin.

    Attributes:
        truth: makes the module.
        faulty: makes the twin of a copy of the module, which it may change.
        inputs: makes arguments; called several times.
        says: what must be in the sentence that explains it.
        layer: the one that parts.
        locally: whether fed with the truth's inputs it parts.
    """

    truth: Callable[[], nn.Module]
    faulty: Callable[[nn.Module], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    says: str
    layer: str = ""
    locally: bool = True


class Pattern(ABC):
    """One known way in which two implementations differ.

    The docstring is its page (first line: its title); it says what it is and how it is mended. A subclass
    without them, or without an example, does not come into being.

    Attributes:
        name: of its page.
        rank: among patterns that explain a difference equally well the lowest is believed: 0 for a
            setting or a function, 1 for weights that lie otherwise, 2 for what is fitted.
        examples: modules and their faulty twins.
    """

    name: ClassVar[str]
    rank: ClassVar[int] = 0
    examples: ClassVar[tuple[Example, ...]]

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
        """Yield what is tried; nothing where the layer has not what this is about."""

    def suspected(self, scene: Scene) -> str:
        """Say what may be it where no variant fits, with `{side}` for the side; "" if nothing is."""
        return ""

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Say what differs in the settings alone, with `{side}` for the side; "" if nothing does."""
        return ""


def normal(*shape: int, scale: float = 1.0, mean: float = 0.0) -> Callable[[], tuple[Any, ...]]:
    """Inputs of an example: one tensor from a normal distribution."""
    return lambda: (mean + scale * torch.randn(shape, dtype=torch.float64),)


def loaded(module: nn.Module, twin: nn.Module) -> nn.Module:
    """The module with the twin's weights, as far as it has such."""
    module.load_state_dict(twin.state_dict(), strict=False)
    return module
