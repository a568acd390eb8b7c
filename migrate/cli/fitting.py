"""`migrate weights --target` with inputs: both models are run, and what was found becomes a mapping."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from migrate.cli.show import working

if TYPE_CHECKING:
    from migrate.parity.fitting.results import Fit

# What the run says, or has no use for.
_NOT_BESIDE = ("mapping", "assume", "scan", "target_inputs")


@dataclass(frozen=True)
class Fitted:
    """What running both models found.

    Attributes:
        fit: the verdict.
        mapping: the file that says what becomes of each key.
        written: whether it is one that may be written with: confirmed, or `--unproven`.
    """

    fit: Fit
    mapping: Path
    written: bool


@contextlib.contextmanager
def fitted(torch: str | None, flax: str, options: Mapping[str, Any]) -> Iterator[Fitted]:
    """Run both models, and yield what that found; the mapping file is deleted afterwards.

    Args:
        torch: the torch module, as the user named it; None: nobody did.
        flax: the Flax model.
        options: of the command.
    """
    if torch is None:
        raise click.UsageError(
            "--inputs runs both models: name the torch one too, --model pkg.module:factory"
        )
    for name in _NOT_BESIDE:
        if options[name] not in (None, ()):
            option = name.replace("_", "-")
            raise click.UsageError(
                f"--inputs says it all by running both models: leave --{option} out"
            )
    from migrate.parity.run.fitted import Models, fit_models

    with tempfile.TemporaryDirectory(prefix="migrate-fit-") as folder:
        mapping = Path(folder) / "fitted.yaml"
        models = Models(torch, flax, options["inputs"], options["drop"])
        with working(quiet=options["quiet"]) as progress:
            fit = fit_models(models, mapping, progress)
        yield Fitted(fit, mapping, fit.confirmed or options["unproven"])
