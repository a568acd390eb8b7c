"""`migrate weights`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from migrate.cli.options import as_json
from migrate.cli.show import FINDINGS, FINE, errors, moving_bytes, show, show_json

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
    help="Of a checkpoint that is far away, read so much before it is due.",
)
@click.option("--resume", is_flag=True, help="Go on with what an interrupted conversion left.")
@click.option("--fail-on-nonfinite", is_flag=True, help="Write nothing if a value is NaN or Inf.")
@click.option("--checksums", is_flag=True, help="Show the SHA-256 of every array.")
@click.option("--dry-run", is_flag=True, help="Show what would become of each key; write nothing.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@as_json
def weights(
    checkpoint: str,
    to: str | None,
    output: str | None,
    dry_run: bool,
    json_output: bool,
    **options: Any,
) -> None:
    """Convert a torch checkpoint to a Flax pytree, every key accounted for; or back.

    CHECKPOINT is a file or folder, org/name[@revision] of the Hugging Face hub, or a URL: hf://, https://,
    gs://, s3:// and whatever fsspec knows. What lies far away is read by ranges, and never put on a disk.

    The module tree decides the layout of each weight; without a module the layers are inferred from
    names and shapes. Each key of the checkpoint is mapped, tied, dropped with its reason, or refused;
    where one is refused nothing is written.
    """
    # A conversion must neither take the chips of a TPU from who uses them nor wait for them.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with errors():
        from converters.remote.names import without_secrets

        run = _to_torch if to == "torch" else _to_flax
        doing = f"{'reading' if dry_run else 'converting'} {without_secrets(checkpoint)}"
        with moving_bytes(doing, quiet=json_output) as moved:
            options |= {"to": to, "moved": moved}
            code, summary, values = run(checkpoint, output, dry_run, options)
        show_json(values) if json_output else show(*summary)
        sys.exit(code)


_OF_TORCH_CHECKPOINTS = (
    "file",
    "key",
    "optimizer_key",
    "optimizer_kind",
    "assume",
    "mapping",
    "save_mapping",
    "dtype",
    "scan",
    "target",
    "target_inputs",
    "drop",
    "mesh",
    "spec",
    "max_shard_size",
    "resume",
    "fail_on_nonfinite",
    "checksums",
)
_Shown = tuple[int, Any, dict[str, Any]]


def _to_flax(
    checkpoint: str, output: str | None, dry_run: bool, options: Mapping[str, Any]
) -> _Shown:
    from converters import convert
    from converters.atomic import require_writable
    from converters.mapping.file import save_mapping
    from converters.planning import PlanOptions, planned
    from converters.planning_apart import planned_apart
    from converters.remote.names import chosen, meant
    from migrate.report.text import weights as views

    if options["file_format"] == "pt":
        raise click.UsageError("--format pt is for --to torch")
    decide: PlanOptions = {
        "model": options["model"],
        "example": _shapes(options["example"]),
        "assume": options["assume"],
        "mapping": options["mapping"],
        "key": options["key"],
        "to": options["to"],
        "dtype": options["dtype"],
        "scan": options["scan"],
        "target": options["target"],
        "target_inputs": options["target_inputs"],
        "drop": options["drop"],
    }
    file = options["save_mapping"]
    if file is not None:
        require_writable(file, overwrite=options["force"])
    understood = meant(checkpoint)
    if options["file"] is not None:
        understood = chosen(understood, options["file"])
    if dry_run:
        made = planned(understood, decide)
        if file is not None:
            save_mapping(made.plan, file, made.api, options["force"])
        code = FINDINGS if made.plan.refused else FINE
        return (
            code,
            views.plan_summary(made.plan, made.notes),
            views.plan_as_json(made.plan, made.notes, made.checkpoint.options),
        )
    size = options["max_shard_size"]
    done = convert(
        understood,
        output=output,
        format=options["file_format"],
        overwrite=options["force"],
        resume=options["resume"],
        shard_bytes=None if size is None else int(size * 1e9),
        mesh=options["mesh"],
        spec=options["spec"],
        fail_on_nonfinite=options["fail_on_nonfinite"],
        digests=options["checksums"],
        optimizer=options["optimizer"],
        optimizer_key=options["optimizer_key"],
        optimizer_kind=options["optimizer_kind"],
        progress=options["moved"],
        ahead_bytes=int(options["read_ahead"] * 1e6),
        planner=planned if options["optimizer"] else planned_apart,
        **decide,
    )
    if file is not None:
        save_mapping(done.plan, file, done.api, options["force"])
    return FINE, views.conversion_summary(done), views.conversion_as_json(done)


def _to_torch(
    checkpoint: str, output: str | None, dry_run: bool, options: Mapping[str, Any]
) -> _Shown:
    from converters.optimizer.convert import optimizer_to_torch
    from converters.remote.names import require_local
    from converters.reverse import default_optimizer_output, to_torch
    from migrate.report.text import weights as views

    if options["file_format"] in ("msgpack", "orbax"):
        raise click.UsageError("--to torch writes safetensors or pt")
    for name in _OF_TORCH_CHECKPOINTS:
        given = options[name]
        if given is not None and given is not False and given != ():
            option = name.replace("_", "-")
            raise click.UsageError(f"--{option} is for torch checkpoints, not for --to torch")
    for name in filter(None, (checkpoint, output)):
        require_local(name, "--to torch")
    done = to_torch(
        checkpoint,
        output=output,
        format=options["file_format"],
        model=options["model"],
        example=_shapes(options["example"]),
        overwrite=options["force"],
        dry_run=dry_run,
    )
    state = options["optimizer"]
    if state is not None and not dry_run:
        written = default_optimizer_output(done.output or Path(checkpoint))
        optimizer_to_torch(state, written, overwrite=options["force"])
        done = replace(done, notes=(*done.notes, f"{written}: the state of the optimizer"))
    return FINE, views.reversal_summary(done), views.reversal_as_json(done)


def _shapes(texts: Sequence[str]) -> list[tuple[int, ...]] | None:
    try:
        shapes = [tuple(int(side) for side in text.split(",")) for text in texts]
    except ValueError:
        raise click.UsageError("--example takes numbers: --example 1,3,64,48") from None
    return shapes or None
