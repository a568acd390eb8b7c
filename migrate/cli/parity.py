"""`migrate parity`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from migrate.cli.elsewhere import nearby
from migrate.cli.options import Command, as_json
from migrate.cli.show import FINDINGS, FINE, errors, show, show_json, working

if TYPE_CHECKING:
    from migrate.parity.ground.options import Options, SideOptions

_A_PATH = click.Path(path_type=Path)
_DTYPES = ("float32", "bfloat16")
_PRECISIONS = ("default", "high", "highest")
_OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")


def _of_each_side(command: Command) -> Command:
    """Add the options that each side has: --NAME for both, --NAME-a and --NAME-b for one."""
    both: list[tuple[str, dict[str, Any]]] = [
        ("precision", {"type": click.Choice(_PRECISIONS), "help": "Passes of float32 matmuls."}),
        ("dtype", {"type": click.Choice(_DTYPES), "help": "Of weights and inputs."}),
        ("device", {"type": click.Choice(["cpu", "cuda"]), "help": "Where torch runs."}),
        ("compile", {"is_flag": True, "default": None, "help": "With torch.compile."}),
        (
            "excess-precision",
            {"type": click.Choice(["on", "off"]), "help": "xla_allow_excess_precision."},
        ),
    ]
    single: list[tuple[str, dict[str, Any]]] = [
        ("weights", {"help": "A checkpoint or pytree; else the other side's."}),
        ("python", {"metavar": "PYTHON", "help": "The interpreter that runs this side."}),
        (
            "channels-last",
            {"metavar": "NAMES", "help": "Inputs, outputs (output.0) that lie so; '' for none."},
        ),
    ]
    for name, how in reversed(both):
        for end, whose in (("-b", "side B"), ("-a", "side A"), ("", "both sides")):
            command = click.option(f"--{name}{end}", **how | {"help": f"{how['help']} ({whose})"})(
                command
            )
    for name, how in reversed(single):
        for end, whose in (("-b", "side B"), ("-a", "side A")):
            command = click.option(f"--{name}{end}", **how | {"help": f"{how['help']} ({whose})"})(
                command
            )
    return command


@click.command(
    epilog="Example: migrate parity net.py:Net flax_net.py:Net --inputs 'x=float32[2,3,32,32]'",
    short_help="Do two implementations match, and where do they part?",
)
@click.argument("a")
@click.argument("b", required=False)
@click.option(
    "--inputs", multiple=True, metavar="SPEC", help="x=float32[2,3,32,32], a file, a function."
)
@click.option(
    "--count", type=click.IntRange(1), default=8, show_default=True, help="Inputs to make."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of all that is drawn.")
@_of_each_side
@click.option("--mapping", type=_A_PATH, help="A mapping file of migrate weights, for the weights.")
@click.option(
    "--drop", multiple=True, metavar="REGEX", help="Keys that the Flax model does not want."
)
@click.option("--align", type=_A_PATH, help="A file that says which layers are the same.")
@click.option(
    "--outputs", multiple=True, metavar="PAIR", help="Outputs that are the same: A.0=B.logits."
)
@click.option("--skip-output", multiple=True, metavar="OUTPUT", help="Not compared: B.hidden, A.0.")
@click.option("--profile", help="The limits: f32-highest, f32-high, tpu-default or bf16.")
@click.option("--strict", is_flag=True, help="The tighter limits of the profile.")
@click.option("--no-layers", is_flag=True, help="Compare the outputs only.")
@click.option("--gradients", is_flag=True, help="Compare gradients too.")
@click.option(
    "--train", type=click.IntRange(0), default=0, metavar="K", help="Compare K steps of training."
)
@click.option("--optimizer", type=click.Choice(_OPTIMIZERS), default="adamw", show_default=True)
@click.option("--learning-rate", type=float, default=1e-3, show_default=True)
@click.option(
    "--loss", default="auto", show_default=True, help="mse, cross_entropy or file.py:function."
)
@click.option(
    "--tokens", type=click.IntRange(0), default=0, metavar="N", help="Decode N tokens greedily."
)
@click.option(
    "--logits", metavar="OUTPUT", help="The output that holds logits, where it is not so called."
)
@click.option("--batch", is_flag=True, help="Compare each side at batch 1 with itself.")
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=600.0, help="Seconds for one request."
)
@click.option("--keep", type=_A_PATH, help="Keep the dumps of all layers in this new folder.")
@click.option("--html", type=_A_PATH, help="Write the report as a page too.")
@as_json
def parity(a: str, b: str | None, html: Path | None, json_output: bool, **given: Any) -> None:
    """Compare two implementations layer by layer, against float64.

    A and B are a torch module, the same under torch_xla (xla:), a Flax linen or nnx model, a jax function
    (jax:), a folder of migrate port or a recorded dump; org/name[@revision] of the Hugging Face hub, or the
    URL of a folder, is the transformers model there. Both get the same inputs and weights. With A alone its
    dump is recorded into --keep. Exit code 1 if they part: with the first layer that does, and why.
    """
    if b is None and given["keep"] is None:
        raise click.UsageError("name B, or with A alone the folder to record into: --keep FOLDER")
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

            weights = {name: here.file(given[name]) for name in given if name.startswith("weights")}
            options = _options(given | weights)
            if b is None:
                kept = record(side(a), options, progress)
                show(f"{a} was recorded: compare with dump:{kept}")
                sys.exit(FINE)
            found = compare(side(a), side(b), options, progress)
        if html is not None:
            write_parity_page(found, html)
    if json_output:
        show_json(parity_as_json(found))
    else:
        show(*parity_summary(found))
    sys.exit(FINE if found.matches else FINDINGS)


def _options(given: dict[str, Any]) -> Options:
    from migrate.parity.ground.options import Options

    same = ("count", "seed", "mapping", "drop", "align", "profile", "strict", "gradients", "train")
    more = ("optimizer", "learning_rate", "loss", "tokens", "logits", "batch", "timeout", "keep")
    return Options(
        a=_side(given, "a"),
        b=_side(given, "b"),
        inputs=tuple(given["inputs"]),
        outputs=tuple(given["outputs"]),
        skip_outputs=tuple(given["skip_output"]),
        layers=not given["no_layers"],
        **{name: given[name] for name in (*same, *more)},
    )


def _side(given: dict[str, Any], side: str) -> SideOptions:
    from migrate.parity.ground.options import SideOptions
    from migrate.parity.ground.outputs import output_named
    from migrate.parity.ground.settings import Settings

    def of(name: str, default: Any, read: Callable[[Any], Any] = lambda value: value) -> Any:
        for key in (f"{name}_{side}", name):
            if given.get(key) is not None:
                return read(given[key])
        return default

    named = of("channels_last", None, lambda text: tuple(filter(None, text.split(","))))
    inputs = None if named is None else tuple(name for name in named if output_named(name) is None)
    settings = Settings(
        dtype=of("dtype", "float32"),
        precision=of("precision", "highest"),
        excess_precision=of("excess_precision", True, lambda value: value == "on"),
        device=of("device", ""),
        compiled=of("compile", False),
        seed=given["seed"],
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
