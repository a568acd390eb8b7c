"""Possible orders in which a script passed a model's parameters to its optimizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from converters.mapping import Outcome, Plan

Shape = tuple[int, ...]
Keys = Sequence[str]

REGISTRATION = "registration"
SORTED = "sorted"


@dataclass(frozen=True)
class Order:
    """Parameter names in a possible order of the optimizer, within each group.

    Attributes:
        name: the name of the order: "registration", "sorted".
        keys: the parameter names.
    """

    name: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Candidates:
    """Known facts about a model's parameters before the optimizer's state is read.

    Attributes:
        registered: orders of registration: of all parameters, and of those that need a gradient.
            Empty if neither a module nor the checkpoint shows the order.
        keys: the names of all parameters.
        kinds: name → kind of the layer that holds the parameter.
        aliases: further names of shared parameters → the name that is converted.
    """

    registered: tuple[tuple[str, ...], ...]
    keys: tuple[str, ...]
    kinds: Mapping[str, str]
    aliases: Mapping[str, str]

    def orders(self, shapes: Mapping[str, Shape], groups: int) -> list[Order]:
        """Return every order that scripts commonly use, registration first.

        Args:
            shapes: the torch shape of each parameter.
            groups: the number of the optimizer's groups. Several groups divide the parameters; in a
                single group a script may have concatenated lists.
        """
        orders: dict[tuple[str, ...], str] = {}
        for index, keys in enumerate(self.registered or (self.keys,)):
            suffix = ", without frozen parameters" if index else ""
            for name, order in self._variants(keys, shapes, groups):
                if self.registered or not name.startswith(REGISTRATION):
                    orders.setdefault(tuple(order), f"{name}{suffix}")
        return [Order(name, keys) for keys, name in orders.items()]

    def named(self, name: str) -> list[Order]:
        """Return the orders for a user's keyword: "registration" or "sorted"."""
        if name == REGISTRATION:
            return [Order(name, keys) for keys in self.registered]
        return [Order(name, tuple(sorted(keys))) for keys in self.registered or (self.keys,)]

    def _variants(
        self, keys: Keys, shapes: Mapping[str, Shape], groups: int
    ) -> Iterator[tuple[str, Keys]]:
        bases = [
            (REGISTRATION, list(keys)),
            (SORTED, sorted(keys)),
            ("sorted, numbers as numbers", sorted(keys, key=_natural)),
        ]
        yield from bases
        for name, order in bases:
            yield f"{name}, reversed", order[::-1]
        for name, order in bases:
            for rule, first in self._rules(shapes):
                for label, want in ((f"{rule} first", True), (f"{rule} last", False)):
                    yield f"{name}, {label}", _parted(order, first, want)
            ranks = {
                kind: index for index, kind in enumerate(dict.fromkeys(map(self._kind, order)))
            }
            yield f"{name}, by type of module", sorted(order, key=lambda k: ranks[self._kind(k)])
        depths = max((key.count(".") for key in keys), default=0) if groups > 1 else 0
        for depth in range(1, depths + 1):  # learning rates that differ by layer create groups
            yield f"modules of depth {depth} reversed", _modules_reversed(keys, depth)
        yield from _swapped(keys, shapes)

    def _rules(self, shapes: Mapping[str, Shape]) -> list[tuple[str, Callable[[str], bool]]]:
        def is_matrix(key: str) -> bool:
            return len(shapes.get(key, ())) > 1

        def is_bias(key: str) -> bool:
            return key.rpartition(".")[2].startswith("bias")

        def is_norm_or_bias(key: str) -> bool:
            return is_bias(key) or "norm" in self._kind(key).lower()

        return [
            ("parameters of two or more dimensions", is_matrix),
            ("biases", is_bias),
            ("norms and biases", is_norm_or_bias),
        ]

    def _kind(self, key: str) -> str:
        return self.kinds.get(key, "")


def candidates(plan: Plan, model: Any = None, *, ordered: bool = True) -> Candidates:
    """Return the known facts about the parameters' order.

    Args:
        plan: the plan of the weights' conversion.
        model: the torch module of the optimizer; None if unknown.
        ordered: whether the checkpoint's keys are in the order of the module's tensors, as with
            `torch.save(model.state_dict())`. safetensors sorts them.
    """
    kinds = {row.key: row.kind for row in plan.mapped}
    aliases = {
        row.key: row.note.removeprefix("tied to ")
        for row in plan.rows
        if row.outcome is Outcome.TIED
    }
    if model is None:
        keys = tuple(
            row.key
            for row in plan.mapped
            if row.kind != "buffer"
            and not any(path.startswith(("batch_stats/", "buffers/")) for path in row.paths)
            and row.key.rpartition(".")[2] not in ("running_mean", "running_var")
        )
        return Candidates((keys,) if ordered else (), keys, kinds, aliases)
    names: dict[int, list[str]] = {}  # a shared parameter has several names
    parameters: dict[int, Any] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        parameters[id(parameter)] = parameter
    registered: list[str] = []
    trained: list[str] = []
    for identity, shared in names.items():
        key = next((name for name in shared if name in kinds), shared[0])
        aliases |= {name: key for name in shared if name != key}
        registered.append(key)
        if parameters[identity].requires_grad:
            trained.append(key)
    both = (tuple(registered), tuple(trained))
    return Candidates(both if both[0] != both[1] else both[:1], both[0], kinds, aliases)


def _natural(key: str) -> list[tuple[int, int, str]]:
    return [
        (0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", key)
    ]


def _parted(keys: Keys, test: Callable[[str], bool], want: bool) -> list[str]:
    return [k for k in keys if test(k) is want] + [k for k in keys if test(k) is not want]


def _modules_reversed(keys: Keys, depth: int) -> list[str]:
    """Return the parameters of the last module first, each module's own in order."""
    modules: dict[str, list[str]] = {}
    for key in keys:
        modules.setdefault(".".join(key.split(".")[:-1][:depth]), []).append(key)
    return [key for keys in reversed(modules.values()) for key in keys]


def _swapped(keys: Keys, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Keys]]:
    """Yield orders in which two whole networks of the same shapes are exchanged."""
    children: dict[str, list[str]] = {}
    for key in keys:
        children.setdefault(key.partition(".")[0], []).append(key)
    networks = {
        name: names
        for name, names in children.items()
        if not name.isdigit() and any(key.count(".") > 1 for key in names)
    }
    for first, other in combinations(networks, 2):
        if [shapes.get(key) for key in children[first]] != [shapes.get(k) for k in children[other]]:
            continue
        names = [{first: other, other: first}.get(name, name) for name in children]
        yield f"{other} before {first}", [key for name in names for key in children[name]]
