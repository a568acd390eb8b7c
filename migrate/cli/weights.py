"""`migrate weights`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from migrate.cli.grouping import SectionedCommand
from migrate.cli.options import as_json, complete_path, force
from migrate.cli.progress import moving_bytes
from migrate.cli.results import Reporter
from migrate.cli.show import errors, keep_jax_on_cpu, show, show_json
from migrate.cli.weights_flax import to_flax
from migrate.cli.weights_request import ToTorch, weights_request
from migrate.cli.weights_torch import to_torch

_FORMATS = ("safetensors", "msgpack", "orbax", "pt")


@click.command(
    cls=SectionedCommand,
    sections={
        "Common options": ["--output", "--model", "--to", "--dry-run", "--force"],
        "Checkpoint": ["--file", "--key", "--as-stored", "--trust-remote-code", "--read-ahead"],
        "Layers and names": ["--example", "--assume", "--mapping", "--save-mapping"],
        "Existing Flax model": [
            "--target",
            "--inputs",
            "--values",
            "--drop",
            "--unproven",
            "--target-apply",
            "--target-python",
            "--target-channels-last",
            "--target-inputs",
        ],
        "Output": [
            "--format",
            "--dtype",
            "--scan",
            "--max-shard-size",
            "--resume",
            "--checksums",
            "--fail-on-nonfinite",
        ],
        "Optimizer state": [
            "--optimizer",
            "--optimizer-key",
            "--optimizer-kind",
            "--optimizer-order",
        ],
        "Sharding": ["--mesh", "--spec"],
        "Several hosts": ["--process", "--coordinator", "--wait"],
    },
    epilog="Example: migrate weights sentence-transformers/all-MiniLM-L6-v2 -o minilm.safetensors",
    short_help="Convert a torch checkpoint to a Flax pytree, and back.",
)
@click.argument("checkpoint", shell_complete=complete_path)
@click.option(
    "--file", metavar="PATTERN", help="File to read, if a folder or repository has several."
)
@click.option(
    "--model",
    help="Torch module of the weights: pkg.module:factory or file.py:factory. A Hugging Face folder names "
    "its own.",
)
@click.option(
    "--example",
    multiple=True,
    metavar="SHAPE",
    help="Shape of a model input, such as 1,3,64,48. Needed if the model flattens a convolution.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE|URL",
    help="Write the result to this file, or to a bucket (gs://, s3://).",
)
@click.option(
    "--to",
    type=click.Choice(["linen", "nnx", "torch"]),
    help="Names and layouts of the output. torch converts a Flax pytree back. Default: linen.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(_FORMATS),
    help="File format; pt needs --to torch. Default: by the name of the output, or safetensors.",
)
@click.option("--key", help="Entry of a training checkpoint that holds the weights.")
@click.option(
    "--assume",
    multiple=True,
    metavar="REGEX=KIND",
    help="Kind of an ambiguous layer, if no model is given: 'tok.*=Embedding' or heads=8.",
)
@click.option(
    "--mapping",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Mapping file that decides every key; no model is needed.",
)
@click.option(
    "--save-mapping",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the mapping of each key to this file.",
)
@click.option(
    "--as-stored",
    is_flag=True,
    help="Convert arrays that look quantized (int8, packed) with their stored numbers. Default: refuse them.",
)
@click.option(
    "--trust-remote-code",
    is_flag=True,
    help="Run the Python code in CHECKPOINT's folder or repository that defines its model.",
)
@click.option(
    "--dtype",
    metavar="TYPE",
    help="Cast floating-point arrays to this type, such as bfloat16.",
)
@click.option(
    "--scan",
    type=int,
    is_flag=False,
    flag_value=0,
    metavar="[AXIS]",
    help="Stack repeated blocks along this axis, as nn.scan expects them. Default axis: 0.",
)
@click.option(
    "--target",
    help="Flax model to fit the pytree to: pkg.module:Model, file.py:Model, or port:FOLDER of migrate port.",
)
@click.option(
    "--inputs",
    multiple=True,
    metavar="SPEC",
    help="Inputs to run both models on, to match their weights: x=float32[2,3,64,64], a file or a function.",
)
@click.option(
    "--values",
    is_flag=True,
    help="Match the weights by value. --target is then a Flax checkpoint of the same weights.",
)
@click.option(
    "--unproven", is_flag=True, help="Write weights too whose match the runs did not confirm."
)
@click.option(
    "--target-apply",
    metavar="FUNCTION",
    help="Function of (params, *inputs) that runs a --target that is a pytree: pkg.module:function.",
)
@click.option(
    "--target-python",
    metavar="PYTHON",
    help="Python interpreter that runs --target. Default: this one.",
)
@click.option(
    "--target-channels-last",
    metavar="NAMES",
    help="Inputs that --target expects with channels last; '' means none. Default: the inputs of torch's "
    "convolutions.",
)
@click.option(
    "--target-inputs",
    metavar="FUNCTION",
    help="Function that returns example inputs of --target: pkg.module:function.",
)
@click.option("--drop", multiple=True, metavar="REGEX", help="Keys to leave out of the target.")
@click.option(
    "--optimizer",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Convert the optimizer state in this file to optax; --to torch converts it back. CHECKPOINT may "
    "hold it.",
)
@click.option(
    "--optimizer-key",
    metavar="KEY",
    help="Entry of a training checkpoint that holds the optimizer state.",
)
@click.option(
    "--optimizer-kind",
    type=click.Choice(["adam", "adamw"]),
    help="Optimizer type, if the state does not show it.",
)
@click.option(
    "--optimizer-order",
    metavar="ORDER",
    help="Order of the parameters in the optimizer, if several are possible: registration, sorted, or a "
    "file with one name per line.",
)
@click.option(
    "--mesh",
    metavar="AXES",
    help="Device mesh to shard orbax output for: data=4,model=2.",
)
@click.option(
    "--spec",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="YAML file of rules that place arrays on the mesh.",
)
@click.option("--max-shard-size", type=float, metavar="GB", help="Largest size of an output file.")
@click.option(
    "--read-ahead",
    type=click.FloatRange(min=0),
    default=256,
    show_default=True,
    metavar="MB",
    help="Data to read ahead from a remote checkpoint, and to hold for uploads.",
)
@click.option(
    "--process",
    metavar="I/N",
    help="Number of this process, from 0, and of all processes; each host runs this command. Default: "
    "detected on Cloud TPU, GKE, SLURM and Open MPI. 0/1 means this host alone.",
)
@click.option(
    "--coordinator",
    metavar="HOST:PORT",
    help="Address at which process 0 listens; any free port works.",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0, min_open=True),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for all processes to start.",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted conversion.")
@click.option(
    "--fail-on-nonfinite", is_flag=True, help="Write nothing if a value is NaN or infinite."
)
@click.option("--checksums", is_flag=True, help="Print the SHA-256 of every array.")
@click.option("--dry-run", is_flag=True, help="Print the mapping of each key; write nothing.")
@force
@as_json
def weights(json_output: bool, **arguments: Any) -> None:
    """Convert a torch checkpoint to a Flax pytree, or back. Every key is accounted for.

    CHECKPOINT is a file or folder, org/name[@revision] of the Hugging Face hub, or a URL: hf://, https://,
    gs://, s3:// or another scheme of fsspec. A remote checkpoint is read by ranges and never copied to disk.

    The layout of each weight follows from the module that holds it. Without a module, layers are inferred
    from names and shapes. Each key is mapped, tied, dropped with a reason, or refused. If a key is refused,
    nothing is written.
    """
    keep_jax_on_cpu()
    # Hosts that lose each other are one line, not the stack traces that torch writes to stderr.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    with errors():
        from converters.remote.names import without_secrets

        request = weights_request(arguments)
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
