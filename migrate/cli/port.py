"""`migrate port`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from migrate.cli.elsewhere import Nearby
from migrate.cli.grouping import ScriptCommand
from migrate.cli.options import WholeNumber, as_json, complete_path
from migrate.cli.progress import working
from migrate.cli.show import FINDINGS, FINE, errors, keep_jax_on_cpu, show, show_json
from shims.tpu import tpu_present

_A_PATH = click.Path(path_type=Path)


@click.command(
    cls=ScriptCommand,
    sections={
        "Common options": ["--inputs", "--output", "--weights", "--name", "--force"],
        "Model": ["--from-script", "--methods", "--cache", "--api", "--lowerings", "--allow-stubs"],
        "Scale": ["--scan", "--remat", "--attention", "--mesh"],
        "Proof": ["--count", "--no-proof", "--timeout"],
        "Debugging": ["--stages"],
    },
    epilog="Example: migrate port net.py:Net --inputs 'x=float32[2,3,32,32]' -o ported",
    short_help="Write a torch module as Flax source, with weights and a proof.",
)
@click.argument("target", required=False, shell_complete=complete_path)
@click.option(
    "--inputs",
    multiple=True,
    metavar="SPEC",
    help="Input of the model: x=float32[2,3,32,32], ids=int64[2,16]<1000, a file or a function. "
    "Repeat it for each argument.",
)
@click.option(
    "--methods",
    metavar="NAME,…",
    help="Methods to port besides forward. Set their inputs with --inputs METHOD:SPEC.",
)
@click.option("--cache", is_flag=True, help="Port the cached forward too, and write generate.py.")
@click.option(
    "--from-script",
    "script",
    type=_A_PATH,
    metavar="FILE",
    help="Training script to take the model and its inputs from. Arguments of the script go after --.",
)
@click.option(
    "-o", "--output", type=_A_PATH, metavar="FOLDER", required=True, help="Folder of all ports."
)
@click.option(
    "--api",
    type=click.Choice(["linen", "nnx"]),
    default="linen",
    show_default=True,
    help="Flax API of the source.",
)
@click.option("--name", help="Name of the port's folder and package. Default: the target's name.")
@click.option(
    "--weights",
    metavar="FILE|URL",
    help="Torch checkpoint to convert. Default: the checkpoint in the folder of the model.",
)
@click.option(
    "--count",
    type=WholeNumber(),
    default=8,
    show_default=True,
    metavar="N",
    help="Number of inputs to generate for the proof.",
)
@click.option(
    "--stages", type=_A_PATH, metavar="FOLDER", help="Write the result of each compiler stage here."
)
@click.option(
    "--lowerings",
    type=_A_PATH,
    metavar="FILE",
    help="Python file that registers lowerings of your own operators.",
)
@click.option("--allow-stubs", is_flag=True, help="Write stubs for unsupported operators.")
@click.option(
    "--force",
    count=True,
    help="Overwrite an earlier port. Given twice: overwrite your edits too.",
)
@click.option(
    "--scan",
    is_flag=True,
    help="Compile repeated layers once: nn.scan over stacked weights.",
)
@click.option(
    "--remat",
    type=click.Choice(["nothing", "dots", "all"]),
    default="all",
    show_default=True,
    help="Values of repeated layers that are kept for the backward pass: nothing but their inputs, products "
    "with weights too, or all. The rest is computed again.",
)
@click.option(
    "--attention",
    type=click.Choice(["auto", "xla", "cudnn", "splash"]),
    help="Default of the attention's implementation, as a field of config.py: XLA, cuDNN on GPUs, splash "
    "attention on TPUs, or auto: the device's kernel if it supports the call.",
)
@click.option(
    "--mesh",
    is_flag=True,
    help="Write partition rules for a mesh of devices, and compare the port on 8 simulated devices.",
)
@click.option("--no-proof", is_flag=True, help="Skip the comparison with the original.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of one comparison.",
)
@as_json
def port(
    target: str | None, no_proof: bool, json_output: bool, methods: str | None, **arguments: Any
) -> None:
    """Write a torch module as a Flax model: source, sizes, weights, tests and a proof.

    TARGET is file.py:Class, pkg.mod:factory, a Hugging Face folder, org/name[@revision] of the hub, or the
    URL of such a folder. The folder OUTPUT/NAME is written completely or not at all.

    Exit codes: 0 if all comparisons agree; 1 if the port is written but a comparison differs (in float32, in
    bfloat16 or in initialization), or stubs remain; 2 if nothing is written. The first line of the report
    names what differs, and code 2 comes with the reason or with all unsupported operators.
    """
    with errors():
        from converters.installing import require_installed
        from converters.remote.names import without_secrets
        from migrate.versions import NEEDS

        require_installed(*NEEDS["port"], extra="port")
        if not tpu_present():  # libtpu would look for one first, and print what it did not find
            keep_jax_on_cpu()
        from migrate.port.errors import MissingOperatorsError

        named = [without_secrets(target)] if target is not None else []
        wanted = tuple(filter(None, (methods or "").replace(" ", "").split(",")))
        more = [f"--methods={','.join(wanted)}"] if wanted else []
        command = shlex.join(["migrate", "port", *named, *more, *_said(arguments)])
        with working(quiet=json_output) as progress:
            # The port's own test goes back to the original: its copy stays.
            here = Nearby(arguments["output"] / "originals", progress)
            original = None if target is None else here.target(target)
            weights = here.file(arguments["weights"])
            _require_readable(original, weights)  # before torch is imported, which takes long
            from migrate.port.pipeline import PortOptions, port_model
            from migrate.report.text.port import missing_as_json, port_as_json, port_summary

            options = PortOptions(
                proof=not no_proof, methods=wanted, **(arguments | {"weights": weights})
            )
            try:
                done = port_model(original, options, command, progress)
            except MissingOperatorsError as error:
                if json_output:
                    show_json(missing_as_json(error))
                raise
        show_json(port_as_json(done)) if json_output else show(*port_summary(done))
        sys.exit(FINE if done.matches else FINDINGS)


def _require_readable(target: str | None, weights: Path | None) -> None:
    """Raise an error for a file or class that does not exist, or for weights that are no checkpoint."""
    from converters.checkpoint.open import open_checkpoint
    from converters.model import require_defined
    from migrate.port.errors import PortError

    if target is not None:
        require_defined(target.removeprefix("torch:"))
    if weights is not None and not weights.exists():
        raise PortError(f"--weights {weights}: no such file", "check the path")
    if weights is not None:
        open_checkpoint(weights)


def _said(arguments: dict[str, Any]) -> list[str]:
    """The options that decide what is written, as they were said."""
    from converters.remote.names import without_secrets

    words = [word for spec in arguments["inputs"] for word in ("--inputs", spec)]
    words += ["--api", arguments["api"]] if arguments["api"] != "linen" else []
    for name in ("name", "weights", "lowerings"):
        if arguments[name] is not None:
            words += [f"--{name}", without_secrets(str(arguments[name]))]
    words += ["--mesh"] if arguments["mesh"] else []
    words += ["--allow-stubs"] if arguments["allow_stubs"] else []
    words += ["--cache"] if arguments["cache"] else []
    words += [f"--attention={arguments['attention']}"] if arguments["attention"] else []
    words += ["--scan"] if arguments["scan"] else []
    words += [f"--remat={arguments['remat']}"] if arguments["remat"] != "all" else []
    words += ["--from-script", str(arguments["script"])] if arguments["script"] is not None else []
    words += ["-o", str(arguments["output"])]
    return [*words, "--", *arguments["args"]] if arguments["args"] else words
