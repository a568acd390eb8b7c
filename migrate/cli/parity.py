"""`migrate parity`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from migrate.cli.elsewhere import nearby
from migrate.cli.grouping import EachSideOption, SectionedCommand
from migrate.cli.options import Command, WholeNumber, as_html, as_json, complete_path
from migrate.cli.progress import working
from migrate.cli.show import FINDINGS, FINE, errors, show, show_json

if TYPE_CHECKING:
    from migrate.parity.ground.options import ParityOptions, SideOptions

_A_PATH = click.Path(path_type=Path)
_DTYPES = ("float32", "bfloat16")
_PRECISIONS = ("default", "high", "highest")
_OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")


def _of_each_side(command: Command) -> Command:
    """Add the options of a side: --NAME for both, --NAME-a and --NAME-b for one.

    The help has one row for all forms of an option.
    """
    both: dict[str, dict[str, Any]] = {
        "precision": {
            "type": click.Choice(_PRECISIONS),
            "help": "Precision of float32 matrix products.",
        },
        "dtype": {"type": click.Choice(_DTYPES), "help": "Type of weights and inputs."},
        "device": {"type": click.Choice(["cpu", "cuda"]), "help": "Device that runs torch."},
        "compile": {"is_flag": True, "default": None, "help": "Compile with torch.compile."},
        "excess-precision": {
            "type": click.Choice(["on", "off"]),
            "help": "Value of xla_allow_excess_precision.",
        },
    }
    single: dict[str, dict[str, Any]] = {
        "weights": {
            "metavar": "FILE",
            "help": "Checkpoint or pytree. Default: the weights of the other side.",
        },
        "python": {"metavar": "PYTHON", "help": "Python interpreter. Default: this one."},
        "channels-last": {
            "metavar": "NAMES",
            "help": "Inputs and outputs (output.0) with channels last; '' means none.",
        },
    }
    for name, settings in both.items():
        first = click.option(f"--{name}", cls=EachSideOption, row=f"--{name}[-a|-b]", **settings)
        command = first(command)
        for side in ("a", "b"):
            command = click.option(f"--{name}-{side}", hidden=True, **settings)(command)
    for name, settings in single.items():
        row = f"--{name}-a, --{name}-b"
        command = click.option(f"--{name}-a", cls=EachSideOption, row=row, **settings)(command)
        command = click.option(f"--{name}-b", hidden=True, **settings)(command)
    return command


@click.command(
    cls=SectionedCommand,
    sections={
        "Common options": ["--inputs", "--mapping", "--gradients", "--train", "--html"],
        "Inputs": ["--count", "--seed"],
        "Each side (-a or -b sets one side only, such as --dtype-a)": [
            "--weights-a",
            "--dtype",
            "--precision",
            "--excess-precision",
            "--device",
            "--compile",
            "--channels-last-a",
            "--python-a",
        ],
        "Matching": ["--drop", "--align", "--outputs", "--skip-output", "--logits"],
        "Comparison": ["--profile", "--strict", "--no-layers", "--batch", "--tokens"],
        "Training": ["--optimizer", "--learning-rate", "--loss"],
        "Run": ["--timeout", "--keep"],
    },
    epilog="Example: migrate parity net.py:Net flax_net.py:Net --inputs 'x=float32[2,3,32,32]'",
    short_help="Compare two implementations layer by layer.",
)
@click.argument("a", shell_complete=complete_path)
@click.argument("b", required=False, shell_complete=complete_path)
@click.option(
    "--inputs",
    multiple=True,
    metavar="SPEC",
    help="Inputs of both sides: x=float32[2,3,32,32], a file or a function.",
)
@click.option(
    "--count",
    type=WholeNumber(),
    default=8,
    show_default=True,
    metavar="N",
    help="Number of inputs to generate.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="Random seed for inputs and weights.",
)
@_of_each_side
@click.option(
    "--mapping",
    type=_A_PATH,
    metavar="FILE",
    help="Mapping file of migrate weights; it converts the weights of one side for the other.",
)
@click.option("--drop", multiple=True, metavar="REGEX", help="Keys to leave out of the Flax model.")
@click.option(
    "--align", type=_A_PATH, metavar="FILE", help="File that lists which layers correspond."
)
@click.option(
    "--outputs",
    multiple=True,
    metavar="PAIR",
    help="Outputs that correspond: A.0=B.logits.",
)
@click.option(
    "--skip-output",
    multiple=True,
    metavar="OUTPUT",
    help="Output to leave out of the comparison: B.hidden or A.0.",
)
@click.option(
    "--profile",
    help="Limits to compare with: f32-highest, f32-high, tpu-default or bf16. Default: by the settings of "
    "both sides.",
)
@click.option("--strict", is_flag=True, help="Use the tighter limits of the profile.")
@click.option("--no-layers", is_flag=True, help="Compare the outputs only.")
@click.option("--gradients", is_flag=True, help="Compare gradients too.")
@click.option(
    "--train",
    type=click.IntRange(0),
    default=0,
    metavar="K",
    help="Compare K training steps too.",
)
@click.option(
    "--optimizer",
    type=click.Choice(_OPTIMIZERS),
    default="adamw",
    show_default=True,
    help="Optimizer of the training steps.",
)
@click.option(
    "--learning-rate",
    type=float,
    default=1e-3,
    show_default=True,
    metavar="RATE",
    help="Learning rate of the training steps.",
)
@click.option(
    "--loss",
    default="auto",
    show_default=True,
    help="Loss of the training steps: auto, mse, cross_entropy or file.py:function.",
)
@click.option(
    "--tokens",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Decode N tokens greedily on each side, and compare them.",
)
@click.option(
    "--logits", metavar="OUTPUT", help="Output that holds the logits. Default: by its name."
)
@click.option(
    "--batch", is_flag=True, help="Compare each side at batch 1 with itself at the whole batch."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of one run of a side.",
)
@click.option(
    "--keep",
    type=_A_PATH,
    metavar="FOLDER",
    help="Save the values of all layers in this new folder.",
)
@as_html
@as_json
def parity(a: str, b: str | None, html: Path | None, json_output: bool, **arguments: Any) -> None:
    """Compare two implementations layer by layer, against a float64 reference.

    A and B are each a torch module, the same under torch_xla (xla:) or torch_tpu (tpu:), a Flax linen or nnx
    model, a jax function (jax:), the folder of a port, or a recorded dump (dump:). org/name[@revision] of the
    Hugging Face hub, or the URL of a folder, is the transformers model there.

    Both sides get the same inputs and weights. With A alone, its values are recorded to --keep. The exit
    code is 1 if the sides differ; the report then names the first layer that differs, and the cause.
    """
    if b is None and arguments["keep"] is None:
        raise click.UsageError("name B to compare with, or add --keep FOLDER to record A")
    with errors():
        from converters.remote.names import without_secrets
        from migrate.parity.compare import compare
        from migrate.parity.run.recorded import record
        from migrate.parity.sides.target import Target, parse_target
        from migrate.report.html.page import check_page_target
        from migrate.report.html.parity.page import write_parity_page
        from migrate.report.text.parity.summary import parity_as_json, parity_summary

        if html is not None:
            check_page_target(html)
        with working(quiet=json_output) as progress, nearby(progress) as here:

            def side(text: str) -> Target:
                return replace(parse_target(here.target(text)), shown=without_secrets(text))

            weights = {
                name: here.file(arguments[name]) for name in arguments if name.startswith("weights")
            }
            options = _options(arguments | weights)
            if b is None:
                kept = record(side(a), options, progress)
                show(f"{a} was recorded: compare with dump:{kept}")
                sys.exit(FINE)
            comparison = compare(side(a), side(b), options, progress)
        if html is not None:
            write_parity_page(comparison, html)
    if json_output:
        show_json(parity_as_json(comparison))
    else:
        show(*parity_summary(comparison))
    sys.exit(FINE if comparison.matches else FINDINGS)


def _options(arguments: dict[str, Any]) -> ParityOptions:
    from migrate.parity.ground.options import ParityOptions

    same = ("count", "seed", "mapping", "drop", "align", "profile", "strict", "gradients", "train")
    more = ("optimizer", "learning_rate", "loss", "tokens", "logits", "batch", "timeout", "keep")
    return ParityOptions(
        a=_side(arguments, "a"),
        b=_side(arguments, "b"),
        inputs=tuple(arguments["inputs"]),
        outputs=tuple(arguments["outputs"]),
        skip_outputs=tuple(arguments["skip_output"]),
        layers=not arguments["no_layers"],
        **{name: arguments[name] for name in (*same, *more)},
    )


def _side(arguments: dict[str, Any], side: str) -> SideOptions:
    from migrate.parity.ground.options import SideOptions
    from migrate.parity.ground.outputs import output_named
    from migrate.parity.ground.settings import SideSettings

    def of(name: str, default: Any, read: Callable[[Any], Any] = lambda value: value) -> Any:
        for key in (f"{name}_{side}", name):
            if arguments.get(key) is not None:
                return read(arguments[key])
        return default

    named = of("channels_last", None, lambda text: tuple(filter(None, text.split(","))))
    inputs = None if named is None else tuple(name for name in named if output_named(name) is None)
    settings = SideSettings(
        dtype=of("dtype", "float32"),
        precision=of("precision", "highest"),
        excess_precision=of("excess_precision", True, lambda value: value == "on"),
        device=of("device", ""),
        compiled=of("compile", False),
        seed=arguments["seed"],
    )
    return SideOptions(
        settings,
        weights=of("weights", None),
        python=of("python", sys.executable),
        # Naming outputs alone says nothing of inputs.
        channels_last=None if named and not inputs else inputs,
        outputs_last=tuple(
            path for name in named or () if (path := output_named(name)) is not None
        ),
    )
