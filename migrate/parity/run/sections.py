"""Comparisons besides the layers, as requested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from migrate.compiler.program import CompilerProgram
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.options import ParityOptions
from migrate.parity.ground.results import Section
from migrate.parity.run.prepare import Prepared
from migrate.parity.sides import protocol
from migrate.parity.sides.side import ComparedSide
from migrate.parity.tasks.batch import compare_batches
from migrate.parity.tasks.excess import excess_section, find_excess
from migrate.parity.tasks.generation import compare_generation
from migrate.parity.tasks.gradients import compare_gradients
from migrate.parity.tasks.logits import compare_logits
from migrate.parity.tasks.modes import compare_modes
from migrate.parity.tasks.party import Parties
from migrate.parity.tasks.training import TrainingOptions, compare_training

_JAX = ("linen", "nnx", "jax")


def compare_sections(
    a: ComparedSide,
    b: ComparedSide,
    ready: Prepared,
    parties: Parties,
    options: ParityOptions,
    progress: Callable[[str], None],
) -> Iterator[Section]:
    """Yield each requested section; logits whenever the model has them.

    Raises:
        ParityError: a side cannot do it (no logits, no `input_ids`).
    """
    logits = compare_logits(parties, options.logits)
    if logits is not None:
        yield logits
    if options.gradients:
        progress("comparing gradients")
        yield compare_gradients(parties)
    if options.modes:
        progress("comparing training mode")
        yield compare_modes(parties, options.drawn)
    if options.train:
        progress(f"training {options.train} steps on each side")
        training = TrainingOptions(
            steps=options.train,
            optimizer=options.optimizer,
            learning_rate=options.learning_rate,
            loss=options.loss,
            output=options.logits,
        )
        yield compare_training(parties, training)
    if options.tokens:
        progress(f"decoding {options.tokens} tokens on each side")
        yield compare_generation(parties, options.tokens, options.logits)
    if options.batch:
        progress("comparing batch 1 with the whole batch")
        yield compare_batches(parties)
    yield from _of_the_compiler(a, b, ready, progress)


def _of_the_compiler(
    a: ComparedSide, b: ComparedSide, ready: Prepared, progress: Callable[[str], None]
) -> Iterator[Section]:
    """Compare what no CPU run shows: approximate top-k, and roundings that the TPU's compiler leaves out."""
    for name, side, settings in (("A", a, ready.a), ("B", b, ready.b)):
        if side.kind not in _JAX:
            continue
        approximate = side.ask(protocol.MeasureTopK(settings, ready.inputs))
        if approximate.checks:
            yield replace(approximate, name=f"{approximate.name} of {name}")
    if ready.a.excess_precision == ready.b.excess_precision:
        return
    # The program is the same on both sides if the model is; if one side does not run on torch_xla or
    # JAX, use the other's.
    side, settings = (b, ready.b) if b.kind in ("xla", *_JAX) else (a, ready.a)
    if side.kind not in ("xla", *_JAX):
        raise ParityError(
            "--excess-precision applies to torch_xla and JAX, and neither side runs on them",
            "write xla: before the torch module",
        )
    progress("compiling for a TPU with and without excess precision")
    file = side.work / f"{id(side)}.program"
    name, form = side.ask(protocol.LowerProgram(settings, ready.inputs, file))
    yield excess_section(find_excess(CompilerProgram(name, form, file.read_bytes())))
