"""Preparation of `migrate weights --target` with inputs: both models are run, and the result is a mapping."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from migrate.cli.progress import working
from migrate.cli.results import Reporter
from migrate.cli.weights_request import BothModels, SameValues

if TYPE_CHECKING:
    from converters.remote.names import ResolvedName
    from migrate.parity.fitting.results import Fit


@dataclass(frozen=True)
class FittedModels:
    """Result of running both models.

    Attributes:
        fit: the verdict.
        mapping: the file that assigns each key.
        written: whether the mapping may be used for writing: it is proven, or `--unproven` is set.
    """

    fit: Fit
    mapping: Path
    written: bool


@contextlib.contextmanager
def fitted(
    torch: str | None, flax: str | None, both: BothModels, reporter: Reporter
) -> Iterator[FittedModels]:
    """Run both models, and yield the resulting fit; the mapping file is deleted afterwards.

    Args:
        torch: the torch module, as the user named it, or None.
        flax: the Flax model.
        both: the settings of the runs.
        reporter: receiver of the progress.
    """
    if torch is None or flax is None:
        raise click.UsageError(
            "--inputs runs both models: add the torch module, --model pkg.module:factory"
        )
    from migrate.parity.run.fitted import Models, fit_models

    with tempfile.TemporaryDirectory(prefix="migrate-fit-") as folder:
        mapping = Path(folder) / "fitted.yaml"
        models = Models(
            torch, flax, both.inputs, both.drop, both.apply, both.python, both.channels_last
        )
        with working(quiet=reporter.quiet) as progress:
            fit = fit_models(models, mapping, progress)
        yield FittedModels(fit, mapping, fit.proven or both.unproven)


@contextlib.contextmanager
def by_values(checkpoint: ResolvedName, same: SameValues, reporter: Reporter) -> Iterator[Path]:
    """Compare the values of two checkpoints, and yield the mapping file; it is deleted afterwards.

    Args:
        checkpoint: torch's.
        same: Flax's, and what to do with both.
        reporter: how it reports what it could not tell apart.
    """
    from converters.checkpoint import open_checkpoint
    from converters.mapping.file import save_mapping
    from converters.output.arrays import open_arrays
    from converters.target.values import fit_values

    torch = open_checkpoint(checkpoint.source, same.key, as_stored=same.as_stored)
    matches = fit_values(torch, open_arrays(same.target), same.drop)
    for line in matches.alike:
        reporter.report(f"equal values, matched in their order: {line}")
    if matches.alike and not same.unproven:
        raise click.UsageError(
            f"{len(matches.alike)} groups of arrays have equal values (first: "
            f"{matches.alike[0]}): the match is not certain; --unproven accepts their order"
        )
    with tempfile.TemporaryDirectory(prefix="migrate-values-") as folder:
        mapping = Path(folder) / "values.yaml"
        save_mapping(matches.plan, mapping)
        yield mapping
