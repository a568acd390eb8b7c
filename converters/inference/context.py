"""What a group can be compared with: the same layer of other blocks, its neighbours, the whole checkpoint."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from converters.inference.assume import Assumptions
from converters.inference.groups import Group
from converters.inference.words import family, own_name


@dataclass(frozen=True)
class Context:
    """The surroundings of the groups.

    Attributes:
        groups: all of them, by path, in the checkpoint's order.
        shared: key → the other keys that are the same tensor, as far as the file tells.
        assumptions: what the user says.
    """

    groups: Mapping[str, Group]
    shared: Mapping[str, frozenset[str]] = field(default_factory=dict)
    assumptions: Assumptions = field(default_factory=Assumptions)
    certain: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    probable: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def learn(self, path: str, kind: str) -> None:
        """Remember a layer whose shapes leave no doubt, for those that resemble it."""
        self.certain[family(path)][kind] += 1
        self.certain[own_name(path)][kind] += 1
        self.certain[""][kind] += 1

    def suspect(self, path: str, kind: str) -> None:
        """Remember a layer that is likely of a kind."""
        self.probable[family(path)][kind] += 1

    def probably(self, path: str, kind: str) -> bool:
        """Whether the same layer of another block is likely of this kind."""
        return self.probable[family(path)][kind] > 0 if family(path) in self.probable else False

    def twins(self, path: str) -> Counter[str]:
        """Certain kinds of the same layer in other blocks."""
        return self.certain.get(family(path)) or Counter()

    def like(self, path: str) -> Counter[str]:
        """Certain kinds of the same layer in other blocks; failing these, of layers of the same name."""
        return self.certain.get(family(path)) or self.certain.get(own_name(path)) or Counter()

    def anywhere(self, kind: str) -> bool:
        """Whether a layer is certainly of this kind, anywhere in the checkpoint."""
        return self.certain[""][kind] > 0 if "" in self.certain else False

    def norm_after(self, path: str) -> int | None:
        """The number of channels of the BatchNorm that the checkpoint lists next, under the same parent."""
        paths = self._order
        index = paths[path] + 1
        following = self._paths[index] if index < len(self._paths) else ""
        if not following or not _near(path, following):
            return None
        mean = self.groups[following].tensors.get("running_mean")
        return mean.shape[0] if mean is not None and len(mean.shape) == 1 else None

    def __post_init__(self) -> None:
        paths = tuple(self.groups)
        object.__setattr__(self, "_paths", paths)
        object.__setattr__(self, "_order", {path: index for index, path in enumerate(paths)})

    _paths: tuple[str, ...] = field(init=False, default=(), repr=False)
    _order: Mapping[str, int] = field(init=False, default_factory=dict, repr=False)


def _near(one: str, other: str) -> bool:
    """Siblings, or one a level deeper than the other."""
    above = one.rpartition(".")[0]
    return other.rpartition(".")[0] == above or other.startswith(f"{above}.")


def sharers(groups: Iterable[frozenset[str]]) -> dict[str, frozenset[str]]:
    """Key → the others of its set."""
    return {key: keys - {key} for keys in groups for key in keys if len(keys) > 1}
