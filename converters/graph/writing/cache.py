"""Sizes of a cache, by the settings of the model."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from converters.graph.caches import LAYER, PART
from converters.graph.expression import SettingFloat, SettingInt
from converters.graph.ir import Call, Op, Ref
from converters.graph.recording.caches import CACHE, DECODE, CachedForward, CacheSlot
from converters.graph.writing.draft import Drafter
from converters.graph.writing.model import Model

# What stands for the rows and for the length in the sizes of a tensor.
ROWS, LENGTH = "batch_size", "length"


@dataclass(frozen=True)
class Cache:
    """The cache of a port.

    Attributes:
        recorded: the cached forward of the original.
        shapes: an entry of each layer: part → its sides as source, which reads `config`.
        layers: the number of layers as source.
        positions: the number of positions that the model has a table for, as source; "" if the model
            computes its positions.
    """

    recorded: CachedForward
    shapes: tuple[Mapping[str, tuple[str, ...]], ...]
    layers: str
    positions: str


def cache_of(drafter: Drafter, model: Model, cached: CachedForward) -> Cache:
    """The cache of a port."""
    owners = _owners(drafter)
    spelled = _Spelled(drafter, model)
    slots = cached.of_cache(CACHE)
    shapes = []
    for layer in range(cached.layers):
        parts = {}
        for slot in slots:
            if slot.layer == layer:
                parts[slot.part] = spelled.shape(slot, owners.get((layer, slot.part), ""))
        shapes.append(parts)
    path = next(iter(owners.values()), "")
    table = cached.table
    positions = "" if table is None else spelled.positions(table)
    return Cache(cached, tuple(shapes), spelled.count(path, cached.layers), positions)


def _owners(drafter: Drafter) -> dict[tuple[int, str], str]:
    """Layer and part of the cache → path of the module that reads the tensor."""
    graph = drafter.graph
    number = next(at for at, entry in enumerate(graph.methods, 1) if entry.method == DECODE)
    entry = graph.methods[number - 1]
    root = next(
        item
        for item in graph.root.body
        if isinstance(item, Call) and item.number == number and item.is_entry
    )
    layers: dict[int, int] = {}
    whole = {at for name, at in entry.inputs if name == CACHE}
    return dict(_read(root, whole, layers))


def _read(
    call: Call, whole: set[int], layers: dict[int, int]
) -> Iterator[tuple[tuple[int, str], str]]:
    for item in call.body:
        if isinstance(item, Call):
            for argument in item.arguments:
                if isinstance(argument.value, Ref) and argument.value.id in whole:
                    whole.add(argument.inside)
                elif isinstance(argument.value, Ref) and argument.value.id in layers:
                    layers[argument.inside] = layers[argument.value.id]
            yield from _read(item, whole, layers)
        elif isinstance(item, Op) and item.target == LAYER and item.arguments[0].id in whole:
            layers[item.outs[0]] = item.arguments[1]
        elif isinstance(item, Op) and item.target == PART and item.arguments[0].id in layers:
            yield (layers[item.arguments[0].id], item.arguments[1]), call.path


class _Spelled:
    """Numbers as settings of the configuration."""

    def __init__(self, drafter: Drafter, model: Model) -> None:
        self.drafter, self.model = drafter, model

    def shape(self, slot: CacheSlot, path: str) -> tuple[str, ...]:
        """The sides of a tensor."""
        sides = []
        used: set[str] = set()  # two axes of one size are two settings
        for axis, side in enumerate(slot.shape):
            if side is None:
                sides.append(ROWS if axis == 0 else LENGTH)
            else:
                sides.append(self._side(side, path, slot, used))
        return tuple(sides)

    def count(self, path: str, layers: int) -> str:
        """The number of layers, by the list of modules that holds them."""
        parts = path.split(".")
        for end in range(1, len(parts)):
            held = self.drafter.modules.get(".".join(parts[:end]))
            if isinstance(held, torch.nn.ModuleList) and len(held) == layers:
                owner = self.drafter.modules[".".join(parts[: end - 1])]
                return self._text(self.drafter.settings.of_count(owner, parts[end - 1], layers))
        return str(layers)

    def positions(self, table: str) -> str:
        """The number of rows of an embedding."""
        embedding = self.drafter.modules[table]
        rows = int(embedding.num_embeddings)
        return self._text(self.drafter.settings.of_layer(embedding, "num_embeddings", rows))

    def _side(self, side: int, path: str, slot: CacheSlot, used: set[str]) -> str:
        module = self.drafter.modules[path]
        settings = self.drafter.settings
        known = [number for number in slot.shape if number is not None]
        product = 1
        for number in known:
            product *= number
        names: Counter[str] = Counter()
        for child in module.children():
            # The layer that computes the tensor gives all of its sides, flat.
            if getattr(child, "out_features", None) == product and len(known) > 1:
                said = settings.of_layer(child, "out_features", product)
                for name, value in (getattr(said, "parts", None) or {}).items():
                    names[name] += value == side
        for name, count in names.most_common():
            if count and name not in used and (field := self._field(name, side)):
                used.add(name)
                return field
        texts = {
            self._text(settings.of_attribute(module, name, side))
            for name, value in vars(module).items()
            if type(value) is int and value == side and name != "layer_idx"
        } - {str(side)}
        # Where several settings have this value, none is known to be the side.
        return texts.pop() if len(texts) == 1 else str(side)

    def _field(self, name: str, value: Any) -> str:
        """The field of the configuration that is this setting of the original."""
        for field, (source, _) in self.model.sources.items():
            if source == name and self.model.settings.get(field) == value:
                return f"config.{field}"
        return ""

    def _text(self, value: Any) -> str:
        """A number as source."""
        if not isinstance(value, SettingInt | SettingFloat) or not value.text:
            return str(int(value))
        fields = {name: self._field(name, part) for name, part in value.parts.items()}
        if not all(fields.values()):
            return str(int(value))
        tree = ast.parse(value.text, mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in fields:
                node.id = fields[node.id]
        return ast.unparse(tree)
