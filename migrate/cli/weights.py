"""`migrate weights`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import click

from migrate.cli.options import as_json
from migrate.cli.show import FINDINGS, FINE, errors, show, show_json, working


@click.command(
    epilog="Example: migrate weights ./bert-folder -o bert.flax.safetensors",
    short_help="Convert a torch checkpoint to a Flax pytree.",
)
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option(
    "--model",
    help="The module whose weights these are: pkg.module:factory or file.py:factory. Not needed for a "
    "Hugging Face folder.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to this file.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["safetensors", "msgpack"]),
    help="By default as the name of the output says, else safetensors.",
)
@click.option("--key", help="The entry of a training checkpoint that holds the weights.")
@click.option(
    "--to",
    type=click.Choice(["linen", "nnx"]),
    default="linen",
    show_default=True,
    help="Whose names the pytree has.",
)
@click.option("--dry-run", is_flag=True, help="Show what would become of each key; write nothing.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@as_json
def weights(
    checkpoint: Path,
    model: str | None,
    output: Path | None,
    file_format: Literal["safetensors", "msgpack"] | None,
    key: str | None,
    to: Literal["linen", "nnx"],
    dry_run: bool,
    force: bool,
    json_output: bool,
) -> None:
    """Convert a torch checkpoint to a Flax pytree, every key accounted for.

    The module tree decides the layout of each weight. Each key of the checkpoint is mapped, tied,
    dropped with its reason, or refused; where one is refused nothing is written.
    """
    with errors():
        from converters import convert, plan
        from converters.planning import PlanOptions
        from migrate.views.weights import (
            conversion_as_json,
            conversion_summary,
            plan_as_json,
            plan_summary,
        )

        options = PlanOptions(model=model, key=key, to=to)
        with working(quiet=json_output) as progress:
            if dry_run:
                progress(f"reading {checkpoint}")
                planned = plan(checkpoint, **options)
            else:
                progress(f"converting {checkpoint}")
                done = convert(
                    checkpoint, output=output, format=file_format, overwrite=force, **options
                )
        if dry_run:
            show_json(plan_as_json(planned)) if json_output else show(*plan_summary(planned))
            sys.exit(FINDINGS if planned.refused else FINE)
        show_json(conversion_as_json(done)) if json_output else show(*conversion_summary(done))
