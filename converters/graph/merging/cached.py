"""The recording of a cached forward, with each cache as one value: a list with an entry for each
layer, and each entry a dictionary of tensors.

A call that uses one entry takes that entry, and returns a new one. A call that uses several entries
takes the cache, and returns a new cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from converters.graph.caches import CACHE, CACHE_KIND, ENTRY, ENTRY_KIND, LAYER, OPAQUE, PART
from converters.graph.ir import Call, Fact, Given, Graph, Op, Ref, Taken, uses
from converters.graph.recording.caches import INDEX, CachedForward, CacheSlot
from converters.graph.recording.trace import GraphError


def with_caches(graph: Graph, cached: CachedForward, cache: str) -> Graph:
    """Replace the tensors of caches among the inputs and outputs by the caches.

    Args:
        graph: the recording of a method of `recording.caches`. Its outputs are those tensors, after
            the logits if there are any.
        cached: the cached forward.
        cache: the cache that the method returns.

    Raises:
        GraphError: a layer's tensors do not come from the same call.
    """
    return _Caches(graph, cached, cache).run()


@dataclass
class _CacheScope:
    """The caches and entries within a call.

    Attributes:
        values: name of a cache → its number, if the call takes the whole cache.
        entries: cache and layer → number of the entry.
        parts: number of a tensor that was an input → its slot.
        body: the items so far.
    """

    values: dict[str, int]
    entries: dict[tuple[str, int], int]
    parts: dict[int, CacheSlot]
    body: list[Any]


class _Caches:
    def __init__(self, graph: Graph, cached: CachedForward, cache: str) -> None:
        self.graph, self.cached, self.cache = graph, cached, cache
        self.facts = dict(graph.facts)
        self.slots = {slot.name: slot for slot in cached.slots}
        self.returned = cached.of_cache(cache)
        self.count = max(graph.facts, default=-1) + 1
        self.named: dict[int, str] = {}
        self.kinds: dict[int, str] = {}
        # Numbers of the index of the first new token.
        self.index = {number for name, number in graph.inputs if name == INDEX}

    def run(self) -> Graph:
        graph = self.graph
        values: dict[str, int] = {}
        parts: dict[int, CacheSlot] = {}
        inputs: list[tuple[str, int]] = []
        for name, number in graph.inputs:
            slot = self.slots.get(name)
            if slot is None:
                inputs.append((name, number))
                continue
            parts[number] = slot
            if slot.cache not in values:
                values[slot.cache] = self._new(slot.cache, CACHE_KIND)
                inputs.append((slot.cache, values[slot.cache]))
        outputs = list(graph.outputs)
        logits = outputs[: len(outputs) - len(self.returned)]
        wanted = {
            ref.id: slot
            for ref, slot in zip(outputs[len(logits) :], self.returned, strict=True)
            if isinstance(ref, Ref)
        }
        if len(wanted) != len(self.returned):
            raise GraphError("--cache: a tensor of the cache is constant", "report it")
        scope = _CacheScope(values, {}, parts, [])
        whole = self._body(graph.root, scope, wanted, whole=True)
        root = replace(graph.root, body=tuple(scope.body))
        results = (*logits, Ref(whole))
        outputs_now: Any = results if len(results) > 1 else results[0]
        return replace(
            graph,
            root=root,
            inputs=tuple(inputs),
            outputs=outputs_now,
            facts=self.facts,
            named=self.named,
            kinds=self.kinds,
        )

    def _new(self, name: str, kind: str) -> int:
        number, self.count = self.count, self.count + 1
        self.facts[number] = Fact((), OPAQUE)
        self.named[number], self.kinds[number] = name, kind
        return number

    def _body(
        self, call: Call, scope: _CacheScope, wanted: Mapping[int, CacheSlot], whole: bool
    ) -> int:
        """Rewrite the items of a call.

        Args:
            call: the call.
            scope: the caches in it.
            wanted: number of a tensor → slot of the returned cache that it is the new value of.
            whole: whether the call returns the cache; otherwise the entry of one layer.

        Returns:
            The number of the returned cache or entry; -1 if nothing is wanted.
        """
        new: dict[int, int] = {}  # layer → its new entry
        done = -1  # the new cache
        for item in call.body:
            if isinstance(item, Call):
                returned, layers = self._call(item, scope, wanted)
                if returned >= 0 and len(layers) > 1:
                    done = returned
                elif returned >= 0:
                    new[layers[0]] = returned
                continue
            for number in sorted(scope.parts.keys() & _used(item)):
                self._part(scope, number)
            scope.body.append(item)
        if not wanted or done >= 0:
            return done
        frames = call.frames
        by_layer: dict[int, dict[str, int]] = {}
        for number, slot in wanted.items():
            by_layer.setdefault(slot.layer, {})[slot.part] = number
        for layer, tensors in by_layer.items():
            if layer in new:
                continue
            new[layer] = self._new(f"layer_{self.cache}" if whole else self.cache, ENTRY_KIND)
            names = tuple(slot.part for slot in self.returned if slot.layer == layer)
            if set(names) != set(tensors):
                raise GraphError(
                    f"--cache: the entries of layer {layer} come from several modules",
                    "port it without --cache",
                )
            values = tuple(Ref(tensors[name]) for name in names)
            scope.body.append(Op(ENTRY, (names, *values), {}, (new[layer],), True, frames))
        if not whole:
            return next(iter(new.values()))
        done = self._new(f"new_{self.cache}", CACHE_KIND)
        entries = tuple(Ref(new[layer]) for layer in sorted(new))
        scope.body.append(Op(CACHE, entries, {}, (done,), True, frames))
        return done

    def _part(self, scope: _CacheScope, number: int) -> None:
        """Take a tensor out of its entry, where it is used first."""
        slot = scope.parts.pop(number)
        entry = self._entry(scope, slot.cache, slot.layer)
        scope.body.append(Op(PART, (Ref(entry), slot.part), {}, (number,), True, ()))

    def _entry(self, scope: _CacheScope, cache: str, layer: int) -> int:
        if (cache, layer) not in scope.entries:
            number = self._new(f"layer_{cache}", ENTRY_KIND)
            scope.entries[cache, layer] = number
            value = Ref(scope.values[cache])
            scope.body.append(Op(LAYER, (value, layer), {}, (number,), True, ()))
        return scope.entries[cache, layer]

    def _call(
        self, item: Call, scope: _CacheScope, wanted: Mapping[int, CacheSlot]
    ) -> tuple[int, Sequence[int]]:
        """Rewrite a call within another: the new entry or cache that it returns, and of which layers."""
        used: dict[str, set[int]] = {}
        inner = _CacheScope({}, {}, {}, [])
        arguments: list[Given] = []
        for argument in item.arguments:
            slot = scope.parts.get(argument.value.id) if isinstance(argument.value, Ref) else None
            if isinstance(argument.value, Ref) and argument.value.id in self.index:
                self.index.add(argument.inside)
                arguments.append(replace(argument, label=f"[1]['{INDEX}']"))
                continue
            if slot is None:
                arguments.append(argument)
                continue
            used.setdefault(slot.cache, set()).add(slot.layer)
            inner.parts[argument.inside] = slot
        for cache, layers in used.items():
            single = len(layers) == 1
            inside = self._new(cache, ENTRY_KIND if single else CACHE_KIND)
            if single:
                layer = next(iter(layers))
                value = self._entry(scope, cache, layer)
                inner.entries[cache, layer] = inside
            else:
                value = scope.values[cache]
                inner.values[cache] = inside
            arguments.append(Given(f"[1]['{cache}']", Ref(value), inside))
        within = {
            each.inside: wanted[each.outside] for each in item.taken if each.outside in wanted
        }
        layers_given = sorted({slot.layer for slot in within.values()})
        complete = {slot.name for slot in self.returned if slot.layer in layers_given} == {
            slot.name for slot in within.values()
        }
        if within and not complete:
            within, layers_given = {}, []
        result = self._body(item, inner, within, whole=len(layers_given) > 1)
        taken = [each for each in item.taken if each.inside not in within]
        outside = -1
        if within:
            several = len(layers_given) > 1
            name = (
                f"layer_{self.cache}" if not several and len(wanted) > len(within) else self.cache
            )
            outside = self._new(name, CACHE_KIND if several else ENTRY_KIND)
            taken.append(Taken("", result, outside))
        scope.body.append(
            replace(item, arguments=tuple(arguments), taken=tuple(taken), body=tuple(inner.body))
        )
        return outside, layers_given


def _used(item: Any) -> set[int]:
    return set(uses(item))
