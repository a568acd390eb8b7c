"""`migrate port`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from migrate.cli.elsewhere import Nearby
from migrate.cli.options import as_json
from migrate.cli.show import FINDINGS, FINE, errors, show, show_json, working

_A_PATH = click.Path(path_type=Path)


class _WithScript(click.Command):
    """What stands behind `--` are arguments of the script, whether a target is named or not."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:end])
        ctx.params["args"] = tuple(args[end + 1 :])
        return rest


@click.command(
    cls=_WithScript,
    epilog="Example: migrate port net.py:Net --inputs 'x=float32[2,3,32,32]' -o ported",
    short_help="Write a torch module as Flax source, with weights and proof.",
)
@click.argument("target", required=False)
@click.option(
    "--inputs", multiple=True, metavar="SPEC", help="x=float32[2,3,32,32], a file, a function."
)
@click.option(
    "--methods",
    metavar="NAME,…",
    help="Methods to port beside forward. Their inputs: --inputs METHOD:SPEC.",
)
@click.option(
    "--from-script",
    "script",
    type=_A_PATH,
    help="A training script: its model and what it is given. Its arguments go behind --.",
)
@click.option("-o", "--output", type=_A_PATH, required=True, help="The folder of ports.")
@click.option("--api", type=click.Choice(["linen"]), default="linen", help="Of Flax.")
@click.option("--name", help="Of the port's folder and package; else as the target is called.")
@click.option("--weights", help="A torch checkpoint, or the URL of one; else the folder's.")
@click.option(
    "--count", type=click.IntRange(1), default=8, show_default=True, help="Inputs to make."
)
@click.option("--stages", type=_A_PATH, help="Write what each stage of the compiler made here.")
@click.option(
    "--lowerings", type=_A_PATH, help="A file that registers lowerings of your own operators."
)
@click.option("--allow-stubs", is_flag=True, help="Write stubs for operators that are missing.")
@click.option(
    "--force", count=True, help="Write over an earlier port; twice: over edits of yours too."
)
@click.option("--no-proof", is_flag=True, help="Do not compare the port with the original.")
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=600.0, help="Seconds for one comparison."
)
@as_json
def port(
    target: str | None, no_proof: bool, json_output: bool, methods: str | None, **given: Any
) -> None:
    """Write the Flax model of a torch module: source, sizes, weights, tests, and the proof.

    TARGET is file.py:Class, pkg.mod:factory, a Hugging Face folder, org/name[@revision] of the hub, or the
    URL of such a folder. OUTPUT/NAME is made whole or not at all. Exit code 1 if port and original part (the
    first module that does is named) or stubs are left, 2 if the model cannot be ported: all operators that
    are missing are listed at once.
    """
    with errors():
        from converters.remote.names import without_secrets
        from migrate.port.errors import MissingOperatorsError
        from migrate.port.story import PortOptions, port_model
        from migrate.report.text.port import missing_as_json, port_as_json, port_summary

        named = [without_secrets(target)] if target is not None else []
        wanted = tuple(filter(None, (methods or "").replace(" ", "").split(",")))
        more = [f"--methods={','.join(wanted)}"] if wanted else []
        command = shlex.join(["migrate", "port", *named, *more, *_said(given)])
        with working(quiet=json_output) as progress:
            # The port's own test goes back to the original: its copy stays.
            here = Nearby(given["output"] / "originals", progress)
            original = None if target is None else here.target(target)
            options = PortOptions(
                proof=not no_proof,
                methods=wanted,
                **(given | {"weights": here.file(given["weights"])}),
            )
            try:
                done = port_model(original, options, command, progress)
            except MissingOperatorsError as error:
                if json_output:
                    show_json(missing_as_json(error))
                raise
        show_json(port_as_json(done)) if json_output else show(*port_summary(done))
        sys.exit(FINE if done.matches else FINDINGS)


def _said(given: dict[str, Any]) -> list[str]:
    """The options that decide what is written, as they were said."""
    from converters.remote.names import without_secrets

    words = [word for spec in given["inputs"] for word in ("--inputs", spec)]
    for name in ("name", "weights", "lowerings"):
        if given[name] is not None:
            words += [f"--{name}", without_secrets(str(given[name]))]
    words += ["--allow-stubs"] if given["allow_stubs"] else []
    words += ["--from-script", str(given["script"])] if given["script"] is not None else []
    return [*words, "-o", str(given["output"]), *(["--", *given["args"]] if given["args"] else [])]
