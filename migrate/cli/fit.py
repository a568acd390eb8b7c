"""`migrate fit`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from migrate.cli.grouping import SectionedCommand
from migrate.cli.options import as_html, as_json, complete_path, torchrun
from migrate.cli.progress import working
from migrate.cli.rewritten import rewritten_for_the_run
from migrate.cli.show import FINDINGS, FINE, errors, show, show_json

if TYPE_CHECKING:
    from migrate.fit.pipeline import FitOptions, ScriptTarget

_A_PATH = click.Path(path_type=Path)


@click.command(
    cls=SectionedCommand,
    sections={
        "Common options": ["--tpu", "--inputs", "--train", "--batch", "--html"],
        "Program": ["--loss", "--dtype", "--batch-option", "--torchrun"],
        "Sharding of a Flax model": ["--mesh", "--spec"],
        "Comparisons": ["--try", "--baseline", "--max-hbm"],
        "Compiler": ["--quick", "--timeout"],
    },
    epilog="Example: migrate fit net.py:Net --inputs 'x=float32[32,3,224,224]' --train adamw --tpu v5e-8",
    short_help="Compile for a TPU slice without a TPU: does it fit?",
)
@click.argument("target", shell_complete=complete_path)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--tpu",
    default="v5e-8",
    show_default=True,
    metavar="SLICES",
    help="TPU slices to compile for, separated by commas: v5e-8,v6e-8; or all.",
)
@click.option(
    "--inputs",
    multiple=True,
    metavar="SPEC",
    help="Inputs of one replica: x=float32[8,3,32,32].",
)
@click.option(
    "--train",
    metavar="OPTIMIZER",
    help="Compile a training step with sgd, momentum, adam or adamw. Flax models also take optax.NAME and "
    "file.py:function.",
)
@click.option(
    "--loss",
    default="auto",
    show_default=True,
    help="Loss of the training step: auto, mse, cross_entropy or file.py:function.",
)
@click.option(
    "--mesh",
    metavar="AXES",
    help="Device mesh of a Flax model: data=4,model=2. Default: all devices along data.",
)
@click.option(
    "--spec",
    type=_A_PATH,
    metavar="FILE",
    help="YAML file of rules that place the axes of weights on the mesh.",
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float32"]),
    help="Type of weights and inputs.",
)
@click.option("--batch", type=click.Choice(["auto"]), help="Find the largest batch that fits.")
@click.option(
    "--batch-option",
    metavar="NAME",
    help="Option of the script that sets its batch size, such as --batch-size.",
)
@torchrun
@click.option(
    "--try",
    "remedies",
    metavar="NAMES",
    help="Compile with these changes too, separated by commas: bf16,remat,shard,batch.",
)
@click.option(
    "--baseline",
    type=_A_PATH,
    metavar="FILE",
    help="JSON report of an earlier run (--json); print what changed since.",
)
@click.option(
    "--max-hbm",
    metavar="SHARE",
    help="Largest share of the HBM that is acceptable, such as 90%. Exit with 1 above it.",
)
@click.option(
    "--quick", is_flag=True, help="Compile with less optimization: half the time, other figures."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=1800.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of each compilation.",
)
@as_html
@as_json
def fit(
    target: str, args: tuple[str, ...], html: Path | None, json_output: bool, **arguments: Any
) -> None:
    """Compile a program for TPU slices with the real TPU compiler. No TPU is needed.

    TARGET is a training script, a torch module or a Flax model with --inputs, a torch module for torch_tpu
    (tpu:net.py:Net), the folder of a port (port:folder) or of a program of `migrate train`, or a file with
    StableHLO. Arguments after `--` go to the script. CUDA code is rewritten first.

    The report says whether the program compiles and fits, what fills the memory, what devices exchange,
    the shortest possible time of a step, and which lines of your code waste time or memory. The exit code
    is 1 if the program does not fit on one of the slices.
    """
    with errors(), contextlib.ExitStack() as stack:
        from migrate.fit.baseline import compared, read_baseline, share_of
        from migrate.fit.pipeline import fit as fitted
        from migrate.report.html.page import check_page_target
        from migrate.report.text.fit import fit_as_json, fit_summary

        if html is not None:
            check_page_target(html)
        options = _options(arguments, args)
        before = read_baseline(arguments["baseline"]) if arguments["baseline"] else None
        most = share_of(arguments["max_hbm"]) if arguments["max_hbm"] else None
        script = _script(target, stack)
        with working(quiet=json_output) as progress:
            report = fitted(target, options, progress, script)
        said = fit_as_json(report)
        changes, passed = compared(before, said, most)
        if html is not None:
            from migrate.report.html.fit import write_fit_page

            write_fit_page(report, html)
        if json_output:
            show_json(said | {"changes": changes, "limits_passed": passed})
        else:
            show(*fit_summary(report))
            show(*changes, *passed)
    sys.exit(FINE if report.fine and not passed else FINDINGS)


def _options(arguments: dict[str, Any], args: tuple[str, ...]) -> FitOptions:
    from click.core import ParameterSource

    from converters.output.sharding import parse_mesh
    from migrate.fit.lowered.step import REMEDIES
    from migrate.fit.pipeline import FitOptions
    from migrate.fit.products import products_named

    remedies = tuple(filter(None, (arguments["remedies"] or "").split(",")))
    if wrong := [name for name in remedies if name not in REMEDIES]:
        raise click.UsageError(f"--try {wrong[0]}: one of {', '.join(REMEDIES)}")
    slices = products_named(arguments["tpu"])
    if arguments["batch_option"] and arguments["batch"] != "auto" and "batch" not in remedies:
        raise click.UsageError("--batch-option needs --batch auto or --try batch")
    if arguments["spec"] and not arguments["mesh"]:
        raise click.UsageError("--spec needs a mesh: add --mesh data=4,model=2")
    source = click.get_current_context().get_parameter_source("tpu")
    return FitOptions(
        tuple(slices),
        tuple(arguments["inputs"]),
        arguments["train"] or "",
        arguments["loss"],
        tuple(parse_mesh(arguments["mesh"]).items()) if arguments["mesh"] else (),
        str(arguments["spec"] or ""),
        arguments["dtype"] or "",
        args,
        remedies,
        arguments["batch"] == "auto",
        arguments["batch_option"] or "",
        arguments["torchrun"],
        arguments["quick"],
        arguments["timeout"],
        by_default=source is ParameterSource.DEFAULT,
    )


def _script(target: str, stack: contextlib.ExitStack) -> ScriptTarget | None:
    """The torch_xla form of a script; None where something else was named."""
    from migrate.fit.pipeline import ScriptTarget, require_frameworks
    from migrate.prove.run import require_script
    from migrate.rewrite.original import at_originals

    if not target.endswith(".py") or target.startswith(("port:", "jax:", "torch:")):
        return None
    path = Path(target)
    require_script(path)
    text = path.read_bytes()
    _refuse_torch_tpu(path, text)
    require_frameworks(is_script=True)
    if b"torch_xla" in text or b"shims" in text:
        return ScriptTarget(path)
    rewritten = rewritten_for_the_run(path, stack)
    return ScriptTarget(rewritten, at_originals(path, rewritten))


def _refuse_torch_tpu(path: Path, text: bytes) -> None:
    """Refuse a script for torch_tpu, whose step is many programs.

    Raises:
        FitError: the script is for torch_tpu.
    """
    from migrate.fit.errors import FitError
    from migrate.launch.errors import JobError
    from migrate.launch.framework import Framework
    from migrate.launch.program import read_program

    if b"tpu" not in text or b"cuda" in text:
        return
    with contextlib.suppress(JobError):
        if read_program(path).framework is Framework.TORCH_TPU:
            raise FitError(
                f"{path} is for torch_tpu, which runs operators one by one: of it, modules are compiled only",
                "name the model: tpu:net.py:Net, with --inputs and --train",
            )
