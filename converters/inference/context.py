"""Context of a group: the same layer in other blocks, its neighbors, the whole checkpoint."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from converters.inference.assume import Assumptions
from converters.inference.groups import Group
from converters.inference.words import family, own_name


@dataclass(frozen=True)
class Context:
    """Context of the groups.

    Attributes:
        groups: all groups by path, in the checkpoint's order.
        shared: key → the other keys of the same tensor, as far as the file shows.
        assumptions: the assumptions of the user.
    """

    groups: Mapping[str, Group]
    shared: Mapping[str, frozenset[str]] = field(default_factory=dict)
    assumptions: Assumptions = field(default_factory=Assumptions)
    certain: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    probable: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def learn(self, path: str, kind: str) -> None:
        """Record a layer whose shapes leave no doubt, for layers that resemble it."""
        self.certain[family(path)][kind] += 1
        self.certain[own_name(path)][kind] += 1
        self.certain[""][kind] += 1

    def suspect(self, path: str, kind: str) -> None:
        """Record a layer that is likely of a kind."""
        self.probable[family(path)][kind] += 1

    def is_probably(self, path: str, kind: str) -> bool:
        """Whether the same layer in another block is likely of this kind."""
        return self.probable[family(path)][kind] > 0 if family(path) in self.probable else False

    def twins(self, path: str) -> Counter[str]:
        """Return the certain kinds of the same layer in other blocks."""
        return self.certain.get(family(path)) or Counter()

    def like(self, path: str) -> Counter[str]:
        """Return the certain kinds of the same layer in other blocks, else of layers of the same name."""
        return self.certain.get(family(path)) or self.certain.get(own_name(path)) or Counter()

    def has_certain(self, kind: str) -> bool:
        """Whether any layer of the checkpoint is certainly of this kind."""
        return self.certain[""][kind] > 0 if "" in self.certain else False

    @cached_property
    def widths(self) -> frozenset[int]:
        """Channel counts of the model: the lengths of its norms, and the inputs of its Linears."""
        widths = set()
        for group in self.groups.values():
            weight, bias = group.shape("weight"), group.shape("bias")
            if weight and len(weight) == 1:
                widths.add(weight[0])
            elif weight and len(weight) == 2 and bias == weight[:1] != weight[1:]:
                widths.add(weight[1])
        return frozenset(widths)

    def norm_of(self, path: str) -> int | None:
        """Return the number of channels of the norm after a convolution; None if no name shows it.

        The norm is a sibling: the next of a numbered row (`net.0`, `net.1`), the one of the same
        number (`conv2`, `bn2`), or the only norm beside the only convolution. The order of keys
        says nothing, since safetensors sorts them.
        """
        parent, _, name = path.rpartition(".")
        beside = self._children[parent]
        norms = [it for it in beside if self._channels(parent, it) is not None]
        if name.isdecimal():
            norms = [it for it in norms if it == str(int(name) + 1)]
        elif number := _numbers(name):
            norms = [it for it in norms if _numbers(it) == number]
        else:
            kernels = [
                it for it in beside if len(self._child(parent, it).shape("weight") or ()) > 2
            ]
            norms = norms if kernels == [name] else []
        return self._channels(parent, norms[0]) if len(norms) == 1 else None

    def _channels(self, parent: str, name: str) -> int | None:
        """Return the channels of a norm, which has running statistics or a scale of one axis."""
        group = self._child(parent, name)
        shape = group.shape("running_mean") or group.shape("weight")
        return shape[0] if shape and len(shape) == 1 else None

    def _child(self, parent: str, name: str) -> Group:
        return self.groups[f"{parent}.{name}" if parent else name]

    def __post_init__(self) -> None:
        for path in self.groups:
            parent, _, name = path.rpartition(".")
            self._children[parent].append(name)

    _children: dict[str, list[str]] = field(
        init=False, default_factory=lambda: defaultdict(list), repr=False
    )


def _numbers(name: str) -> list[str]:
    return re.findall(r"\d+", name)


def sharers(groups: Iterable[frozenset[str]]) -> dict[str, frozenset[str]]:
    """Return key → the other keys of its set."""
    return {key: keys - {key} for keys in groups for key in keys if len(keys) > 1}
