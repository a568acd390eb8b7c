"""What a program asks for that costs more than it need: of what was written, and of its arguments."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from migrate.compiler.arrays import Array
from migrate.compiler.hlo import Instruction, Module, place_in
from migrate.compiler.written import Operation, Written
from migrate.counts import many
from migrate.fit.lowered.step import Argument
from migrate.fit.memory import Memory
from migrate.fit.products import Generation
from migrate.fit.waste import OF_THE_STEP, Waste, worth_its_memory

_WIDE_SIDE = 1024  # from here on padding a side costs little
_TILE, _LANES = 8, 128
_CHANGES = ("parameter", "optimizer state")


@dataclass(frozen=True)
class Given:
    """One program, before and after it was compiled.

    Attributes:
        written, module: it.
        arguments: what they are; () where it is not known.
        outputs: see `Part`.
        trains: whether it is a step of training.
        shown: from a place in a file that ran to the one that the user knows.
    """

    written: Written
    module: Module
    arguments: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    trains: bool
    shown: Callable[[str], str]


def waste_as_written(given: Given, memory: Memory, chip: Generation) -> Iterator[Waste]:
    """All of it, in no order."""
    products = [one for one in given.written.operations if one.kind == "product"]
    total = sum(one.amount for one in products) or 1.0
    yield from _wide(given)
    yield from _halves(given, products, total)
    yield from _forgotten(given, products, total)
    yield from _looked_up(given, products, total)
    yield from _uneven(given, products, total)
    yield from _constants(given, memory)
    yield from _twice(given, memory, chip)
    yield from _whole(given, memory, chip)


def _by_line(given: Given, operations: Sequence[Operation]) -> Iterator[tuple[str, float]]:
    """(line, how much together)."""
    found: dict[str, float] = defaultdict(float)
    for one in operations:
        found[given.shown(place_in(one.where))] += one.amount
    yield from found.items()


def _wide(given: Given) -> Iterator[Waste]:
    """Values of float64 or complex128, which the chip does not have: it computes them from pieces."""
    lines: Counter[tuple[str, str]] = Counter()
    for one in given.written.operations:
        if one.kind == "wide":
            name = "complex128" if "complex" in one.dtypes[0] else "float64"
            lines[name, given.shown(place_in(one.where))] += 1
    for (name, source), count in lines.items():
        yield Waste(
            "float64",
            source,
            f"{many(count, 'array')} of {name}, which a TPU computes from pieces at many times the cost",
            "compute in float32 (a double loss, a NumPy float or a Python constant often brings it in)",
            0.0,
        )


def _halves(given: Given, products: Sequence[Operation], total: float) -> Iterator[Waste]:
    for source, flops in _by_line(given, [one for one in products if "f16" in one.dtypes]):
        if flops / total >= OF_THE_STEP:
            yield Waste(
                "float16",
                source,
                "products of float16, which a matrix unit does not take: each is converted first",
                "use bfloat16: of the same size, and it needs no loss scaling",
                flops / total,
            )


def _forgotten(given: Given, products: Sequence[Operation], total: float) -> Iterator[Waste]:
    """Products of float32 in a step that is meant to be in bfloat16."""
    if sum(one.amount for one in products if set(one.dtypes) == {"bf16"}) < total / 2:
        return
    for source, flops in _by_line(given, [one for one in products if set(one.dtypes) == {"f32"}]):
        if flops / total >= OF_THE_STEP:
            yield Waste(
                "float32 among bfloat16",
                source,
                "products of float32, where most of the step is bfloat16: twice the memory and its traffic",
                "give this layer bfloat16 too (dtype=jnp.bfloat16, autocast), if it was not meant",
                flops / total,
            )


def _looked_up(given: Given, products: Sequence[Operation], total: float) -> Iterator[Waste]:
    for source, flops in _by_line(given, [one for one in products if one.one_hot]):
        if flops / total >= OF_THE_STEP:
            yield Waste(
                "one-hot product",
                source,
                "rows of a table are found by multiplying all of it with zeros and ones",
                "look them up: table[index], jnp.take, nn.Embed, nn.Embedding",
                flops / total,
            )


def _uneven(given: Given, products: Sequence[Operation], total: float) -> Iterator[Waste]:
    """Wide sides of weights that no tile divides, and no mesh: a vocabulary of 50,257."""
    known = zip(given.written.arguments, given.arguments, strict=False)
    weights = {
        side
        for shape, argument in known
        if argument.kind == "parameter" and len(shape) > 1
        for side in shape
    }
    sides = {side for side in weights if side >= _WIDE_SIDE and side % _TILE}
    for side in sorted(sides):
        better = math.ceil(side / _LANES) * _LANES
        for source, flops in _by_line(given, [one for one in products if side in one.sides]):
            if flops / total >= OF_THE_STEP:
                yield Waste(
                    "uneven side",
                    source,
                    f"a side of {side} fills no tile, and no mesh of 8 divides it",
                    f"round it up to {better} and leave the rest unused",
                    (better / side - 1) * flops / total,
                )


def _constants(given: Given, memory: Memory) -> Iterator[Waste]:
    constants = [one for one in given.written.operations if one.kind == "constant"]
    for source, size in _by_line(given, constants):
        yield Waste(
            "constant",
            source,
            f"{size / 1e6:.1f} MB stand in the program itself: each change of them compiles it again",
            "give the array as an argument of the step",
            size / max(1, memory.peak),
        )


def _twice(given: Given, memory: Memory, chip: Generation) -> Iterator[Waste]:
    """Weights and state that come out again, and not where they were.

    What a step does not change (frozen weights) does not come out. Where nobody says what the arguments are,
    what comes out of a step of training in the shape of an argument is its new value.
    """
    if not given.arguments and not given.trains:
        return
    module = given.module
    beside: dict[str, list[int]] = defaultdict(list)
    for place, array in enumerate(module.root.arrays if module.root else ()):
        if place not in module.aliases:
            beside[str(array)].append(place)
    count, lines = 0, []
    for array, argument in _undonated(given):
        for place in beside[str(array)]:
            if not given.outputs or given.outputs[place] == argument:
                beside[str(array)].remove(place)
                count += array.padded
                lines.append(module.output_source(place))
                break
    if worth_its_memory(count, memory, chip):
        yield Waste(
            "not donated",
            next(filter(None, lines), ""),
            f"{count / 1e6:.1f} MB of weights and optimizer state are kept beside their new values",
            "donate them (jax.jit(step, donate_argnums=…)); in torch change them in place (weight.sub_(…)), "
            "and let no other name hold the old ones",
            count / memory.peak,
        )


def _undonated(given: Given) -> Iterator[tuple[Array, Argument | None]]:
    """Arrays of arguments that a step may change, and that keep their memory; which argument each is."""
    donated = set(given.module.aliases.values())
    for one, kind in _arguments(given):
        if one.number not in donated and (not given.arguments or kind in _CHANGES):
            argument = given.arguments[one.number] if given.arguments else None
            for array in one.arrays:
                yield array, argument


def _arguments(given: Given) -> Iterator[tuple[Instruction, str]]:
    """Each argument of the compiled program, and what it is."""
    for one in given.module.entry.values():
        if one.opcode == "parameter":
            known = one.number < len(given.arguments)
            yield one, given.arguments[one.number].kind if known else ""


def _whole(given: Given, memory: Memory, chip: Generation) -> Iterator[Waste]:
    """Weights and state that each device has all of, where others are cut."""
    cut: dict[tuple[int, ...], float] = {}  # whole shape → into how many parts
    whole: list[tuple[Instruction, str, tuple[int, ...]]] = []
    for one, kind in _arguments(given):
        shape = given.written.arguments[one.number] if given.written.arguments else one.shape
        parts = math.prod(shape) / max(1, math.prod(one.shape))
        if parts > 1 and (not given.arguments or kind in _CHANGES):
            cut[shape] = max(parts, cut.get(shape, 1.0))
        elif parts == 1 and kind in ("", *_CHANGES):
            whole.append((one, kind, shape))
    sources = given.module.sources_in(given.module.entry)
    saved: dict[str, float] = defaultdict(float)
    for one, kind, shape in whole:
        parts = cut.get(shape, max(cut.values(), default=1.0) if kind else 1.0)
        used = place_in(given.written.uses[one.number]) if given.written.uses else ""
        source = given.shown(used) if used else sources[one.name]
        saved[source] += sum(array.padded for array in one.arrays) * (1 - 1 / parts)
    for source, size in saved.items():
        if worth_its_memory(size, memory, chip):
            yield Waste(
                "not cut",
                source,
                f"{size / 1e6:.1f} MB of weights or optimizer state lie whole on each device, others are cut",
                "give them an axis of the mesh too (--spec, in_shardings; the state as its weight)",
                size / memory.peak,
            )
