"""Find costs that the program text itself asks for: in the written code and in its arguments."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from migrate.compiler.arrays import HloArray
from migrate.compiler.hlo import HloModule, Instruction, place_in
from migrate.compiler.written import WrittenOperation, WrittenProgram
from migrate.counts import binary_size, many
from migrate.fit.lowered.step import ProgramArgument
from migrate.fit.memory import Memory
from migrate.fit.products import Generation
from migrate.fit.waste import OF_THE_STEP, Waste, worth_its_memory

_WIDE_SIDE = 1024  # from here on padding a side costs little
_TILE, _LANES = 8, 128
_CHANGES = ("parameter", "optimizer state")


@dataclass(frozen=True)
class CompiledProgram:
    """A program before and after its compilation.

    Attributes:
        written, module: the program before and after compilation.
        arguments: what they are; () where it is not known.
        outputs: see `Part`.
        trains: whether it is a step of training.
        shown: maps a location in a file that ran to the location that the user knows.
    """

    written: WrittenProgram
    module: HloModule
    arguments: tuple[ProgramArgument, ...]
    outputs: tuple[ProgramArgument, ...]
    trains: bool
    shown: Callable[[str], str]


def waste_as_written(program: CompiledProgram, memory: Memory, chip: Generation) -> Iterator[Waste]:
    """All of it, in no order."""
    products = [
        operation for operation in program.written.operations if operation.kind == "product"
    ]
    total = sum(product.amount for product in products) or 1.0
    yield from wide_values(program, memory)
    yield from _halves(program, products, total)
    yield from _forgotten(program, products, total)
    yield from _looked_up(program, products, total)
    yield from _uneven(program, products, total)
    yield from _constants(program, memory)
    yield from _twice(program, memory, chip)
    yield from _whole(program, memory, chip)


def _by_line(
    program: CompiledProgram, operations: Sequence[WrittenOperation]
) -> Iterator[tuple[str, float]]:
    """(line, how much together)."""
    flops_by_line: dict[str, float] = defaultdict(float)
    for operation in operations:
        flops_by_line[program.shown(place_in(operation.where))] += operation.amount
    yield from flops_by_line.items()


def wide_values(program: CompiledProgram, memory: Memory) -> Iterator[Waste]:
    """Values of float64 or complex128, which the chip does not have: it computes them from pieces.

    Small arrays without a line are torch's own: the backward pass of `F.normalize` compares with a float64.
    """
    counts: Counter[tuple[str, str]] = Counter()
    sizes: dict[tuple[str, str], float] = defaultdict(float)
    for operation in program.written.operations:
        if operation.kind == "wide":
            name = "complex128" if "complex" in operation.dtypes[0] else "float64"
            key = name, program.shown(place_in(operation.where))
            counts[key] += 1
            sizes[key] += operation.amount
    for (name, source), count in counts.items():
        if source or sizes[name, source] >= OF_THE_STEP * memory.peak:
            yield Waste(
                "float64",
                source,
                f"{many(count, 'array')} of {name}, which a TPU computes from pieces at many times the cost",
                "compute in float32 (a double loss, a NumPy float or a Python constant often brings it in)",
                0.0,
            )


def _halves(
    program: CompiledProgram, products: Sequence[WrittenOperation], total: float
) -> Iterator[Waste]:
    for source, flops in _by_line(
        program, [product for product in products if "f16" in product.dtypes]
    ):
        if flops / total >= OF_THE_STEP:
            yield Waste(
                "float16",
                source,
                "products of float16, which a matrix unit does not take: each is converted first",
                "use bfloat16: of the same size, and it needs no loss scaling",
                flops / total,
            )


def _forgotten(
    program: CompiledProgram, products: Sequence[WrittenOperation], total: float
) -> Iterator[Waste]:
    """Products of float32 in a step that is meant to be in bfloat16."""
    if sum(product.amount for product in products if set(product.dtypes) == {"bf16"}) < total / 2:
        return
    for source, flops in _by_line(
        program, [product for product in products if set(product.dtypes) == {"f32"}]
    ):
        if flops / total >= OF_THE_STEP:
            yield Waste(
                "float32 among bfloat16",
                source,
                "products of float32, where most of the step is bfloat16: twice the memory and its traffic",
                "give this layer bfloat16 too (dtype=jnp.bfloat16, autocast), if it was not meant",
                flops / total,
            )


def _looked_up(
    program: CompiledProgram, products: Sequence[WrittenOperation], total: float
) -> Iterator[Waste]:
    for source, flops in _by_line(program, [product for product in products if product.one_hot]):
        if flops / total >= OF_THE_STEP:
            yield Waste(
                "one-hot product",
                source,
                "rows of a table are found by multiplying all of it with zeros and ones",
                "look them up: table[index], jnp.take, nn.Embed, nn.Embedding",
                flops / total,
            )


def _uneven(
    program: CompiledProgram, products: Sequence[WrittenOperation], total: float
) -> Iterator[Waste]:
    """Wide sides of weights that no tile divides, and no mesh: a vocabulary of 50,257."""
    known = zip(program.written.arguments, program.arguments, strict=False)
    weights = {
        side
        for shape, argument in known
        if argument.kind == "parameter" and len(shape) > 1
        for side in shape
    }
    sides = {side for side in weights if side >= _WIDE_SIDE and side % _TILE}
    for side in sorted(sides):
        better = math.ceil(side / _LANES) * _LANES
        for source, flops in _by_line(
            program, [product for product in products if side in product.sides]
        ):
            if flops / total >= OF_THE_STEP:
                yield Waste(
                    "uneven side",
                    source,
                    f"a side of {side} fills no tile, and no mesh of 8 divides it",
                    f"round it up to {better} and leave the rest unused",
                    (better / side - 1) * flops / total,
                )


def _constants(program: CompiledProgram, memory: Memory) -> Iterator[Waste]:
    constants = [
        operation for operation in program.written.operations if operation.kind == "constant"
    ]
    for source, size in _by_line(program, constants):
        yield Waste(
            "constant",
            source,
            f"{binary_size(size)} stand in the program itself: each change of them compiles it again",
            "give the array as an argument of the step",
            size / max(1, memory.peak),
        )


def _twice(program: CompiledProgram, memory: Memory, chip: Generation) -> Iterator[Waste]:
    """Weights and state that come out again, and not where they were.

    What a step does not change (frozen weights) does not come out. Where nobody says what the arguments are,
    what comes out of a step of training in the shape of an argument is its new value.
    """
    if not program.arguments and not program.trains:
        return
    module = program.module
    beside: dict[str, list[int]] = defaultdict(list)
    for place, array in enumerate(module.root.arrays if module.root else ()):
        if place not in module.aliases:
            beside[str(array)].append(place)
    count, lines = 0, []
    for array, argument in _undonated(program):
        for place in beside[str(array)]:
            if not program.outputs or program.outputs[place] == argument:
                beside[str(array)].remove(place)
                count += array.padded
                lines.append(module.output_source(place))
                break
    if worth_its_memory(count, memory, chip):
        yield Waste(
            "not donated",
            next(filter(None, lines), ""),
            f"{binary_size(count)} of weights and optimizer state are kept beside their new values",
            "donate them (jax.jit(step, donate_argnums=…)); in torch change them in place (weight.sub_(…)), "
            "and let no other name hold the old ones",
            count / memory.peak,
        )


def _undonated(program: CompiledProgram) -> Iterator[tuple[HloArray, ProgramArgument | None]]:
    """Arrays of arguments that a step may change, and that keep their memory; which argument each is."""
    donated = set(program.module.aliases.values())
    for instruction, kind in _arguments(program):
        if instruction.number not in donated and (not program.arguments or kind in _CHANGES):
            argument = program.arguments[instruction.number] if program.arguments else None
            for array in instruction.arrays:
                yield array, argument


def _arguments(program: CompiledProgram) -> Iterator[tuple[Instruction, str]]:
    """Yield each argument of the compiled program with its kind."""
    for instruction in program.module.entry.values():
        if instruction.opcode == "parameter":
            known = instruction.number < len(program.arguments)
            yield instruction, program.arguments[instruction.number].kind if known else ""


def _whole(program: CompiledProgram, memory: Memory, chip: Generation) -> Iterator[Waste]:
    """Weights and state that each device has all of, where others are cut."""
    cut: dict[tuple[int, ...], float] = {}  # whole shape → into how many parts
    whole: list[tuple[Instruction, str, tuple[int, ...]]] = []
    for instruction, kind in _arguments(program):
        shape = (
            program.written.arguments[instruction.number]
            if program.written.arguments
            else instruction.shape
        )
        parts = math.prod(shape) / max(1, math.prod(instruction.shape))
        if parts > 1 and (not program.arguments or kind in _CHANGES):
            cut[shape] = max(parts, cut.get(shape, 1.0))
        elif parts == 1 and kind in ("", *_CHANGES):
            whole.append((instruction, kind, shape))
    sources = program.module.sources_in(program.module.entry)
    saved: dict[str, float] = defaultdict(float)
    for instruction, kind, shape in whole:
        parts = cut.get(shape, max(cut.values(), default=1.0) if kind else 1.0)
        used = place_in(program.written.uses[instruction.number]) if program.written.uses else ""
        source = program.shown(used) if used else sources[instruction.name]
        saved[source] += sum(array.padded for array in instruction.arrays) * (1 - 1 / parts)
    for source, size in saved.items():
        if worth_its_memory(size, memory, chip):
            yield Waste(
                "not cut",
                source,
                f"{binary_size(size)} of weights or optimizer state lie whole on each device, others are cut",
                "give them an axis of the mesh too (--spec, in_shardings; the state as its weight)",
                size / memory.peak,
            )
