"""`migrate weights`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from migrate.cli.options import as_json
from migrate.cli.show import errors, show, show_json, working


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
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@as_json
def weights(
    checkpoint: Path,
    model: str | None,
    output: Path | None,
    file_format: Literal["safetensors", "msgpack"] | None,
    key: str | None,
    force: bool,
    json_output: bool,
) -> None:
    """Convert a torch checkpoint to a Flax pytree, every key accounted for.

    The module tree decides the layout of each weight. Each key of the checkpoint is mapped, tied,
    dropped with its reason, or refused; where one is refused nothing is written.
    """
    with errors():
        from converters import convert
        from migrate.views.weights import conversion_as_json, conversion_summary

        with working(quiet=json_output) as progress:
            progress(f"converting {checkpoint}")
            done = convert(
                checkpoint, model=model, output=output, format=file_format, key=key, overwrite=force
            )
        if json_output:
            show_json(conversion_as_json(done))
        else:
            show(*conversion_summary(done))
