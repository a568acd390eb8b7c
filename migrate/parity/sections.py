"""What is compared beside the layers, as it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from migrate.parity.options import Options
from migrate.parity.results import Section
from migrate.parity.tasks.batch import compare_batches
from migrate.parity.tasks.generation import compare_generation
from migrate.parity.tasks.gradients import compare_gradients
from migrate.parity.tasks.logits import compare_logits
from migrate.parity.tasks.party import Parties
from migrate.parity.tasks.training import TrainingOptions, compare_training


def compare_sections(
    parties: Parties, options: Options, progress: Callable[[str], None]
) -> Iterator[Section]:
    """Each section that was asked for; logits wherever the model has them.

    Raises:
        ParityError: a side cannot do it (no logits, no `input_ids`).
    """
    found = compare_logits(parties, options.logits)
    if found is not None:
        yield found
    if options.gradients:
        progress("comparing gradients")
        yield compare_gradients(parties)
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
