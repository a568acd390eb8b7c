"""`migrate weights --target` with inputs: both models are run, and what was found becomes a mapping."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from migrate.cli.show import working

if TYPE_CHECKING:
    from converters.remote.names import Meant
    from migrate.parity.fitting.results import Fit

# What the run says, or has no use for.
_OF_A_RUN = ("target_apply", "target_python", "target_channels_last")
_NOT_BESIDE = ("mapping", "assume", "scan", "target_inputs")


@dataclass(frozen=True)
class Fitted:
    """What running both models found.

    Attributes:
        fit: the verdict.
        mapping: the file that says what becomes of each key.
        written: whether it is one that may be written with: proven, or `--unproven`.
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
        last = options["target_channels_last"]
        models = Models(
            torch,
            flax,
            options["inputs"],
            options["drop"],
            options["target_apply"],
            options["target_python"] or sys.executable,
            None if last is None else tuple(filter(None, last.split(","))),
        )
        with working(quiet=options["quiet"]) as progress:
            fit = fit_models(models, mapping, progress)
        yield Fitted(fit, mapping, fit.proven or options["unproven"])


@contextlib.contextmanager
def by_values(checkpoint: Meant, options: Mapping[str, Any]) -> Iterator[Path]:
    """Compare the values of two checkpoints, and yield the mapping file; it is deleted afterwards.

    Args:
        checkpoint: torch's.
        options: of the command.
    """
    if options["target"] is None:
        raise click.UsageError("--values compares two checkpoints: give Flax's, --target FILE")
    for name in ("model", "inputs", *_OF_A_RUN, *_NOT_BESIDE):
        if options[name] not in (None, ()):
            option = name.replace("_", "-")
            raise click.UsageError(f"--values says it all: leave --{option} out")
    from converters.checkpoint import open_checkpoint
    from converters.mapping.file import save_mapping
    from converters.output.arrays import open_arrays
    from converters.target.values import fit_values

    torch = open_checkpoint(checkpoint.place, options["key"], as_stored=options["as_stored"])
    found = fit_values(torch, open_arrays(Path(options["target"])), options["drop"])
    for line in found.alike:
        options["said"](f"not told apart by values, taken in their order: {line}")
    if found.alike and not options["unproven"]:
        raise click.UsageError(
            f"{len(found.alike)} groups of arrays are not told apart by their values (first: "
            f"{found.alike[0]}): another checkpoint could be converted wrongly; --unproven takes their order"
        )
    with tempfile.TemporaryDirectory(prefix="migrate-values-") as folder:
        mapping = Path(folder) / "values.yaml"
        save_mapping(found.plan, mapping)
        yield mapping
