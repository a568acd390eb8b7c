"""Compile one program for one slice, and read from the answer whether it fits and what it costs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from migrate.compiler.compile import Compiled, compile_for_tpu
from migrate.compiler.hlo import HloModule, from_here, place_in
from migrate.compiler.program import CompilerProgram
from migrate.counts import binary_size
from migrate.fit import cache
from migrate.fit.as_written import CompiledProgram, waste_as_written
from migrate.fit.lines import bound_of, lines_of
from migrate.fit.lowered.step import LoweredStep, StepProgram
from migrate.fit.memory import memory_of
from migrate.fit.products import GENERATIONS, Slice, products
from migrate.fit.verdict import FitVerdict
from migrate.fit.waste import found_once, waste_of
from migrate.fit.work import Collective, InstructionWork, collectives_of, counted_once, work_of

_TOO_BIG = re.compile(
    r"total memory required[^(]*\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_REMEDIES = {
    "X{64": "cast the operands to int32 or float32 before the product",
    "Unbounded dynamism": "give every tensor a fixed size: pad to a bound, and mask",
    "Custom emitter": "a custom call that the TPU does not know: write it in plain operations",
    "custom call": "a custom call that the TPU does not know: write it in plain operations",
}


def judge(
    step: LoweredStep, product: Slice, *, timeout: float, quick: bool = False, explain: bool = True
) -> FitVerdict:
    """Compile a step for a slice.

    Args:
        step: the program.
        product: the slice.
        timeout: seconds for the compiler; past them it is "undetermined".
        quick: whether the compiler may take less trouble: half the time, other figures.
        explain: whether a program that is too big is compiled for a larger chip too, to say what it holds.
    """
    options: dict[str, bool | int | float | str] = (
        {"exec_time_optimization_effort": -1.0} if quick else {}
    )
    plain = FitVerdict(product, "fits", available=int(product.generation.hbm))
    compiled: list[tuple[StepProgram, Compiled]] = []
    for part in step.parts:
        result, day = _compiled(part.program, product, options, timeout, product.devices)
        plain = replace(
            plain,
            compiler=f"libtpu {result.libtpu} for {result.device}" if result.libtpu else "",
            seconds=plain.seconds + result.seconds,
            worked=plain.worked + result.worked,
            cached=day,
        )
        if result.refused:
            return _refused(plain, result, part, step, timeout, explain=explain)
        if not result.texts:
            return replace(plain, state="undetermined", why=result.undetermined)
        compiled.append((part, result))
    judged = _told(plain, compiled, product, step)
    if step.cuts:
        return replace(
            judged,
            state="cut",
            why="a value is read inside of the step: this is only the part after the last read",
            where=", ".join(step.cuts),
            remedy="read it after the step, or once in a while (migrate run says what each read costs)",
        )
    if judged.beside and judged.needed > judged.available:
        return replace(
            judged,
            state="too big",
            why="each program of the step has room, but not with the weights of the others beside it",
            remedy="end the step by one sync, so that it is one program, or take a larger slice",
        )
    if step.eager_bytes > judged.available:
        return _too_big_one_by_one(judged, step.eager_bytes)
    together = any(part.arguments or part.program.partitioned for part in step.parts)
    parts = step.trains and together and not step.repeated
    if parts and product.devices > 1 and not judged.collectives:
        return replace(
            judged,
            state="no collectives",
            why=f"{product.devices} replicas train, and nothing brings their gradients together",
            remedy="let xm.optimizer_step, xm.reduce_gradients or DDP reduce the gradients",
        )
    return judged


def _too_big_one_by_one(judged: FitVerdict, size: int) -> FitVerdict:
    """Verdict on a step with room as one program only, whose tensors take this many bytes in eager mode."""
    return replace(
        judged,
        state="too big",
        why="as one program it has room, but operators that run one by one hold tensors of "
        f"{binary_size(size)} at the peak",
        remedy="compile the step (torch.compile), checkpoint activations, or take a smaller batch",
    )


def _compiled(
    program: CompilerProgram,
    product: Slice,
    options: dict[str, bool | int | float | str],
    timeout: float,
    devices: int,
) -> tuple[Compiled, str]:
    """The compiler's answer for the first so many devices of a slice."""

    def ask() -> Compiled:
        return compile_for_tpu(
            program,
            [options],
            topology=product.topology,
            topology_options=product.options,
            devices=devices,
            timeout=timeout,
        )

    return cache.compiled(program, product, devices, options, ask)


def _told(
    plain: FitVerdict,
    compiled: Sequence[tuple[StepProgram, Compiled]],
    product: Slice,
    step: LoweredStep,
) -> FitVerdict:
    """Return the verdict that the texts of the programs show. The memory is that of the largest program."""

    def shown(location: str) -> str:
        return from_here(step.shown(location))

    work: list[InstructionWork] = []
    collectives: list[Collective] = []
    modules = []
    for part, result in compiled:
        module = HloModule(result.texts[0], shown, result.written.outputs, step.backward)
        modules.append(module)
        work += [
            replace(instruction_work, times=instruction_work.times * part.times)
            for instruction_work in work_of(module)
        ]
        collectives += [
            replace(collective, times=collective.times * part.times)
            for collective in collectives_of(module, product.devices)
        ]
    beside = _beside([part for part, _ in compiled], modules)
    needed = [
        result.stats[0].reserved + more for (_, result), more in zip(compiled, beside, strict=True)
    ]
    largest = max(range(len(compiled)), key=needed.__getitem__)
    (part, result), module = compiled[largest], modules[largest]
    stats = result.stats[0]
    memory = memory_of(module)
    waste = [
        *waste_of(work, memory, product.generation),
        *(
            each
            for (piece, answer), its in zip(compiled, modules, strict=True)
            for each in waste_as_written(
                CompiledProgram(
                    answer.written, its, piece.arguments, piece.outputs, step.trains, shown
                ),
                memory,
                product.generation,
            )
        ),
    ]
    return replace(
        plain,
        trains=step.trains,
        roles=tuple((argument.kind, argument.name) for argument in part.arguments),
        results=tuple((output.kind, output.name) for output in part.outputs),
        stats=stats,
        again=sum(instruction_work.again for instruction_work in work),
        flops=sum(result.stats[0].flops * part.times for part, result in compiled),
        needed=needed[largest],
        beside=beside[largest],
        memory=memory,
        collectives=tuple(collectives),
        bound=bound_of(work, collectives, product.generation),
        lines=lines_of(work, product.generation),
        counted_once=tuple(
            dict.fromkeys(each for module in modules for each in counted_once(module))
        ),
        waste=tuple(sorted(found_once(waste), key=lambda part_waste: -part_waste.share)),
    )


def _beside(parts: Sequence[StepProgram], modules: Sequence[HloModule]) -> list[int]:
    """Return for each program of a step the bytes that only other programs get or create, by name."""
    given_bytes: list[dict[tuple[str, str], int]] = []
    for part, module in zip(parts, modules, strict=True):
        own = {}
        for instruction in module.entry.values():
            known = instruction.opcode == "parameter" and instruction.number < len(part.arguments)
            if known and part.arguments[instruction.number].name:
                argument = part.arguments[instruction.number]
                own[argument.kind, argument.name] = sum(
                    array.padded for array in instruction.arrays
                )
        given_bytes.append(own)
    everything = {name: size for own in given_bytes for name, size in own.items()}
    created = [{(output.kind, output.name) for output in part.outputs} for part in parts]
    return [
        sum(size for name, size in everything.items() if name not in own and name not in its)
        for own, its in zip(given_bytes, created, strict=True)
    ]


def _refused(
    plain: FitVerdict,
    result: Compiled,
    part: StepProgram,
    step: LoweredStep,
    timeout: float,
    *,
    explain: bool,
) -> FitVerdict:
    first = result.refused.strip().splitlines()[0]
    if (big := _TOO_BIG.search(result.refused)) is None:
        remedy = next((what for sign, what in _REMEDIES.items() if sign in result.refused), "")
        return replace(
            plain,
            state="refused",
            why=first,
            where=step.shown(place_in(result.refused) or _unsized(result)),
            remedy=remedy or "write the operation otherwise; the message names it",
        )
    needed = int(float(big[1]) * _UNITS[big[2]])
    available = int(float(big[3]) * _UNITS[big[4]])
    verdict = replace(
        plain,
        state="too big",
        why=f"it takes {binary_size(needed)} of HBM on each device, which has {binary_size(available)}: "
        f"{binary_size(needed - available)} are missing",
        needed=needed,
        available=available,
        remedy=f"--try {','.join(step.remedies)} says which change makes it fit"
        if step.remedies
        else "take a larger slice, or another program",
    )
    larger = _larger(plain.product) if explain else None
    if larger is None:
        return verdict
    there, _ = _compiled(part.program, larger, {}, timeout, plain.product.devices)
    if not there.texts:
        return verdict
    judged = _told(verdict, [(part, there)], plain.product, step)
    return replace(
        judged, needed=needed, memory=judged.memory, explained_by=larger.name, stats=there.stats[0]
    )


def _unsized(result: Compiled) -> str:
    """The first array without a size, should the compiler refuse it for that: it names the argument only."""
    operations = result.written.operations if "dynamism" in result.refused else ()
    places = (place_in(operation.where) for operation in operations if operation.kind == "unsized")
    return next(filter(None, places), "")


def _larger(product: Slice) -> Slice | None:
    """The smallest slice with as many devices of the generation with the most memory; None for that one."""
    roomiest = max(GENERATIONS, key=lambda generation: generation.hbm)
    if roomiest is product.generation:
        return None
    fitting = [
        candidate
        for candidate in products()
        if candidate.generation is roomiest and candidate.devices >= product.devices
    ]
    return min(fitting, key=lambda candidate: candidate.devices, default=None)
