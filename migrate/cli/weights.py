"""`migrate weights`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from migrate.cli.options import as_json
from migrate.cli.show import FINDINGS, FINE, errors, moving_bytes, show, show_json

if TYPE_CHECKING:
    from converters.checkpoint.place import Place
    from converters.hosts import Process
    from converters.planning import PlanOptions
    from converters.remote.names import Meant

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
            # A terminal has the bar already, and room for one.
            quiet = json_output or sys.stderr.isatty()
            said = _silent if json_output else _said
            options |= {"to": to, "moved": moved, "quiet": quiet, "said": said}
            code, summary, values = run(checkpoint, output, dry_run, options)
        show_json(values) if json_output else show(*summary)
        sys.exit(code)


def _said(line: str) -> None:
    click.echo(f"… {line}", err=True)


def _silent(line: str) -> None:
    pass


_OF_TORCH_CHECKPOINTS = (
    "file",
    "key",
    "as_stored",
    "trust_remote_code",
    "optimizer_key",
    "optimizer_kind",
    "optimizer_order",
    "assume",
    "save_mapping",
    "dtype",
    "scan",
    "target_apply",
    "target_python",
    "target_channels_last",
    "target_inputs",
    "values",
    "mesh",
    "spec",
    "max_shard_size",
    "process",
    "coordinator",
    "resume",
    "fail_on_nonfinite",
    "checksums",
)
_Shown = tuple[int, Any, dict[str, Any]]


def _to_flax(
    checkpoint: str, output: str | None, dry_run: bool, options: Mapping[str, Any]
) -> _Shown:
    from converters.atomic import require_writable
    from converters.remote.names import chosen, meant
    from migrate.cli.fitting import by_values, fitted
    from migrate.report.text import fitting

    if options["file_format"] == "pt":
        raise click.UsageError("--format pt is for --to torch")
    decide: PlanOptions = {
        "model": options["model"],
        "example": _shapes(options["example"]),
        "assume": options["assume"],
        "mapping": options["mapping"],
        "key": options["key"],
        "as_stored": options["as_stored"],
        "trust_remote_code": options["trust_remote_code"],
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

    def understood() -> Meant:
        found = meant(checkpoint)
        return found if options["file"] is None else chosen(found, options["file"])

    if options["target"] is not None and options["inputs"]:
        if options["process"] is not None:
            raise click.UsageError(
                "--target with --inputs runs both models on one host: --save-mapping there, --mapping on all"
            )
        _require_free(understood(), output, dry_run, options)
        with fitted(_module(options, understood().place), options["target"], options) as found:
            if not found.written:
                return (
                    FINDINGS,
                    fitting.not_written(found.fit),
                    {"fit": fitting.fit_as_json(found.fit)},
                )
            decide |= {"model": None, "target": None, "drop": (), "mapping": found.mapping}
            code, summary, values = _converted(understood, output, dry_run, decide, options)
            said = (*summary, *fitting.fit_summary(found.fit))
            return code, said, {**values, "fit": fitting.fit_as_json(found.fit)}
    if options["values"]:
        _require_free(understood(), output, dry_run, options)
        with by_values(understood(), options) as mapping:
            decide |= {"model": None, "target": None, "drop": (), "mapping": mapping}
            return _converted(understood, output, dry_run, decide, options)
    needless = ("unproven", "target_apply", "target_python", "target_channels_last")
    _require_target(options, *(needless if options["target"] else ("inputs", *needless)))
    return _converted(understood, output, dry_run, decide, options)


def _require_free(
    checkpoint: Meant, output: str | None, dry_run: bool, options: Mapping[str, Any]
) -> None:
    """Refuse an output that is there before minutes go into models that are run, or values compared."""
    from converters.conversion import require_free

    if not dry_run:
        size = _shard_bytes(options)
        form, force = options["file_format"], options["force"]
        require_free(checkpoint, output, form, overwrite=force, shard_bytes=size)


def _shard_bytes(options: Mapping[str, Any]) -> int | None:
    size = options["max_shard_size"]
    return None if size is None else int(size * 1e9)


def _require_target(options: Mapping[str, Any], *names: str) -> None:
    """Refuse options that only a target that is run has a use for."""
    for name in names:
        if options[name] not in (None, False, ()):
            option = name.replace("_", "-")
            raise click.UsageError(f"--{option} is for a --target that is run with --inputs")


def _module(options: Mapping[str, Any], place: Place) -> str | None:
    """The torch module: what is named, else that of a Hugging Face folder."""
    if options["model"] is not None or not isinstance(place, Path):
        return options["model"]
    folder = place if place.is_dir() else place.parent
    return str(folder) if (folder / "config.json").is_file() else None


def _converted(
    understood: Callable[[], Meant],
    output: str | None,
    dry_run: bool,
    decide: PlanOptions,
    options: Mapping[str, Any],
) -> _Shown:
    from converters import convert
    from converters.hosts import met
    from converters.mapping.file import save_mapping
    from converters.optimizer.order import read_order
    from converters.planning import planned
    from converters.planning_apart import planned_apart
    from migrate.report.text import weights as views

    file = options["save_mapping"]
    order = None
    if options["optimizer_order"] is not None:
        if options["optimizer"] is None:
            raise click.UsageError("--optimizer-order is for --optimizer")
        order = read_order(options["optimizer_order"])
    if dry_run:
        made = planned(understood(), decide)
        if file is not None:
            save_mapping(made.plan, file, made.api, options["force"])
        code = FINDINGS if made.plan.refused else FINE
        return (
            code,
            views.plan_summary(made.plan, made.notes),
            views.plan_as_json(made.plan, made.notes, made.checkpoint.options),
        )
    with met(_process(output, options), options["wait"], options["said"]) as hosts:
        done = convert(
            understood(),
            output=output,
            format=options["file_format"],
            overwrite=options["force"],
            resume=options["resume"],
            shard_bytes=_shard_bytes(options),
            mesh=options["mesh"],
            spec=options["spec"],
            fail_on_nonfinite=options["fail_on_nonfinite"],
            digests=options["checksums"],
            optimizer=options["optimizer"],
            optimizer_key=options["optimizer_key"],
            optimizer_kind=options["optimizer_kind"],
            optimizer_order=order,
            progress=options["moved"],
            ahead_bytes=int(options["read_ahead"] * 1e6),
            hosts=hosts,
            planner=planned if options["optimizer"] else planned_apart,
            **decide,
        )
    if file is not None and hosts.first:
        save_mapping(done.plan, file, done.api, options["force"])
    # In a log of all hosts the whole table stands once.
    summary = views.conversion_summary(done) if hosts.first else views.conversion_end(done)
    return FINE, summary, views.conversion_as_json(done)


def _process(output: str | None, options: Mapping[str, Any]) -> Process:
    """Which of several processes this is; what is written to a path is never shared without being asked."""
    from converters.hosts import Process, detected, parse_process
    from converters.remote.names import is_url

    said, coordinator = options["process"], options["coordinator"]
    if said is not None:
        return parse_process(said, coordinator)
    found = detected() if coordinator or (output is not None and is_url(output)) else None
    if coordinator is None:
        return found or Process(0, 1)
    if found is None:
        raise click.UsageError("--coordinator is for many hosts: give --process 3/16 too")
    return parse_process(f"{found.index}/{found.count}", coordinator)


def _to_torch(
    checkpoint: str, output: str | None, dry_run: bool, options: Mapping[str, Any]
) -> _Shown:
    from converters.remote.names import require_local
    from converters.reverse import require_free
    from migrate.cli.fitting import fitted
    from migrate.report.text import fitting

    if options["file_format"] in ("msgpack", "orbax"):
        raise click.UsageError("--to torch writes safetensors or pt")
    for name in _OF_TORCH_CHECKPOINTS:
        given = options[name]
        if given is not None and given is not False and given != ():
            option = name.replace("_", "-")
            raise click.UsageError(f"--{option} is for torch checkpoints, not for --to torch")
    for name in filter(None, (checkpoint, output)):
        require_local(name, "--to torch")
    torch, mapping = options["model"], options["mapping"]
    if options["target"] is None:
        _require_target(options, "inputs", "unproven", "drop")
        return _restored(checkpoint, output, dry_run, torch, mapping, options)
    if not options["inputs"]:
        raise click.UsageError("--to torch --target runs both models: give --inputs")
    if options["model"] is None:
        raise click.UsageError("--to torch --target: name the Flax model, --model pkg.module:Model")
    if not dry_run:
        require_free(checkpoint, output, options["file_format"], overwrite=options["force"])
    with fitted(options["target"], options["model"], options) as found:
        if not found.written:
            return FINDINGS, fitting.not_written(found.fit), {"fit": fitting.fit_as_json(found.fit)}
        code, summary, values = _restored(
            checkpoint, output, dry_run, options["target"], found.mapping, options
        )
        said = (*summary, *fitting.fit_summary(found.fit))
        return code, said, {**values, "fit": fitting.fit_as_json(found.fit)}


def _restored(
    checkpoint: str,
    output: str | None,
    dry_run: bool,
    torch: str | None,
    mapping: Path | None,
    options: Mapping[str, Any],
) -> _Shown:
    from converters.optimizer.convert import optimizer_to_torch
    from converters.reverse import default_optimizer_output, to_torch
    from migrate.report.text import weights as views

    done = to_torch(
        checkpoint,
        output=output,
        format=options["file_format"],
        model=torch,
        example=_shapes(options["example"]),
        mapping=mapping,
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
