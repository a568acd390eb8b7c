"""`migrate weights`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from migrate.cli.options import as_json
from migrate.cli.results import Reporter
from migrate.cli.show import errors, moving_bytes, show, show_json
from migrate.cli.weights_flax import to_flax
from migrate.cli.weights_request import ToTorch, weights_request
from migrate.cli.weights_torch import to_torch

_FORMATS = ("safetensors", "msgpack", "orbax", "pt")


@click.command(
    epilog="Example: migrate weights sentence-transformers/all-MiniLM-L6-v2 -o minilm.safetensors",
    short_help="Convert a torch checkpoint to a Flax pytree, and back.",
)
@click.argument("checkpoint")
@click.option("--file", metavar="PATTERN", help="Which file of a folder or repository it is.")
@click.option(
    "--model",
    help="The module whose weights these are: pkg.module:factory or file.py:factory. Not needed for a "
    "Hugging Face folder.",
)
@click.option(
    "--example",
    multiple=True,
    metavar="SIDES",
    help="The shape of an input of the model, 1,3,64,48, where a flattened convolution depends on it.",
)
@click.option("-o", "--output", help="Write to this file, or URL of a bucket (gs://, s3://).")
@click.option(
    "--to",
    type=click.Choice(["linen", "nnx", "torch"]),
    help="Whose names and layouts the output has: linen by default; torch: the way back.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(_FORMATS),
    help="By default as the name of the output says, else safetensors; pt is torch's only.",
)
@click.option("--key", help="The entry of a training checkpoint that holds the weights.")
@click.option(
    "--assume",
    multiple=True,
    metavar="REGEX=KIND",
    help="Without a model: what an ambiguous layer is, e.g. 'tok.*=Embedding' or heads=8.",
)
@click.option("--mapping", type=click.Path(path_type=Path), help="A mapping file that says it all.")
@click.option(
    "--save-mapping", type=click.Path(path_type=Path), help="Write what becomes of each key."
)
@click.option(
    "--as-stored",
    is_flag=True,
    help="Convert also what looks quantized (int8, packed), its numbers as they are; else it is refused.",
)
@click.option(
    "--trust-remote-code",
    is_flag=True,
    help="Run the code in CHECKPOINT's folder or repository that defines its model; else none of it is run.",
)
@click.option("--dtype", help="Cast floating-point arrays, e.g. bfloat16; else each keeps its own.")
@click.option(
    "--scan",
    type=int,
    is_flag=False,
    flag_value=0,
    metavar="[AXIS]",
    help="Stack repeated blocks along this axis (0), as nn.scan wants them.",
)
@click.option(
    "--target", help="A Flax model to fit the pytree to: pkg.module:Model or file.py:Model."
)
@click.option(
    "--inputs",
    multiple=True,
    metavar="SPEC",
    help="Fit to the target by running both models on x=float32[2,3,64,64], a file, a function.",
)
@click.option(
    "--values",
    is_flag=True,
    help="--target is a Flax checkpoint of the same weights: their values say what belongs where.",
)
@click.option("--unproven", is_flag=True, help="Write also what the runs did not confirm.")
@click.option(
    "--target-apply",
    metavar="FUNCTION",
    help="pkg.module:function of (params, *inputs), where --target is a pytree or a function that gives it.",
)
@click.option(
    "--target-python",
    metavar="PYTHON",
    help="The interpreter that runs --target, where its packages are another environment's.",
)
@click.option(
    "--target-channels-last",
    metavar="NAMES",
    help="Inputs that --target takes channels last; '' for none. Else those that torch's convolutions take.",
)
@click.option("--target-inputs", help="pkg.module:function that gives its example inputs.")
@click.option("--drop", multiple=True, metavar="REGEX", help="Keys that the target has no use for.")
@click.option(
    "--optimizer",
    type=click.Path(path_type=Path),
    help="Convert the optimizer's state in this file too (it may be CHECKPOINT), to optax; with --to torch "
    "the way back.",
)
@click.option("--optimizer-key", help="Its entry in a training checkpoint.")
@click.option(
    "--optimizer-kind", type=click.Choice(["adam", "adamw"]), help="Where its state does not tell."
)
@click.option(
    "--optimizer-order",
    metavar="ORDER",
    help="The order in which the optimizer holds the parameters, where several fit: registration, sorted, or "
    "a file with a name a line.",
)
@click.option("--mesh", help="For orbax: cut as this device mesh wants it, e.g. data=4,model=2.")
@click.option(
    "--spec",
    type=click.Path(path_type=Path),
    help="How arrays lie on the mesh: a YAML file of rules.",
)
@click.option("--max-shard-size", type=float, metavar="GB", help="Several files, none above this.")
@click.option(
    "--read-ahead",
    type=click.FloatRange(min=0),
    default=256,
    show_default=True,
    metavar="MB",
    help="Of a checkpoint that is far away, read so much before it is due; let no more wait to be sent.",
)
@click.option(
    "--process",
    metavar="I/N",
    help="Many hosts: this is process I (from 0) of N; each runs this command. On Cloud TPU, GKE, SLURM and "
    "Open MPI it is found out; 0/1: this one alone.",
)
@click.option("--coordinator", metavar="HOST:PORT", help="Where process 0 listens; any free port.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0, min_open=True),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="Until all processes must have begun.",
)
@click.option("--resume", is_flag=True, help="Go on with what an interrupted conversion left.")
@click.option("--fail-on-nonfinite", is_flag=True, help="Write nothing if a value is NaN or Inf.")
@click.option("--checksums", is_flag=True, help="Show the SHA-256 of every array.")
@click.option("--dry-run", is_flag=True, help="Show what would become of each key; write nothing.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@as_json
def weights(json_output: bool, **given: Any) -> None:
    """Convert a torch checkpoint to a Flax pytree, every key accounted for; or back.

    CHECKPOINT is a file or folder, org/name[@revision] of the Hugging Face hub, or a URL: hf://, https://,
    gs://, s3:// and whatever fsspec knows. What lies far away is read by ranges, and never put on a disk.

    The module tree decides the layout of each weight; without a module the layers are inferred from
    names and shapes. Each key of the checkpoint is mapped, tied, dropped with its reason, or refused;
    where one is refused nothing is written.
    """
    # A conversion must neither take the chips of a TPU from who uses them nor wait for them.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # Hosts that lose each other are one line, not the stack traces that torch writes to stderr.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    with errors():
        from converters.remote.names import without_secrets

        request = weights_request(given)
        word = "reading" if request.dry_run else "converting"
        doing = f"{word} {without_secrets(request.checkpoint)}"
        with moving_bytes(doing, quiet=json_output) as moved:
            # A terminal has the bar already, and room for one.
            quiet = json_output or sys.stderr.isatty()
            reporter = Reporter(moved, quiet, _silent if json_output else _said)
            if isinstance(request, ToTorch):
                result = to_torch(request, reporter)
            else:
                result = to_flax(request, reporter)
        show_json(result.values) if json_output else show(*result.summary)
        sys.exit(result.code)


def _said(line: str) -> None:
    click.echo(f"… {line}", err=True)


def _silent(line: str) -> None:
    pass
