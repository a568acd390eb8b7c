"""The commands: arguments in, text and exit codes out.

The only code that prints or exits, one function a command. What a command needs is imported inside its
function, so that `migrate --help` answers at once.

Exit codes: 0 done and fine, 1 findings or a mismatch, 2 could not (one line says what, where, what to do).
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from migrate.options import as_json, takes_a_script

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

FINE, FINDINGS, COULD_NOT = 0, 1, 2


def main() -> None:
    """Run the command line; the console script `migrate`."""
    # As Ctrl-C does: what was started is stopped, and temporary files are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    commands(prog_name="migrate")


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from migrate.versions import versions

        for name, version in versions().items():
            click.echo(f"{name} {version or '(not installed)'}")
        context.exit()


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: migrate rewrite train.py && migrate prove train.py --replicas 2",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version of this program and of the frameworks.",
)
@click.option("--debug", is_flag=True, help="Show a traceback for an error.")
@click.pass_context
def commands(context: click.Context, debug: bool) -> None:
    """Move PyTorch DDP training and models from CUDA to TPUs, and prove that they compute the same."""
    context.obj = debug


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turn errors, this program's own and defects of it, into one line on stderr and exit code 2."""
    from converters.errors import ConversionError
    from migrate.errors import MigrateError
    from shims.errors import ShimError

    try:
        yield
    except (MigrateError, ConversionError, ShimError) as error:
        if click.get_current_context().find_root().obj:
            raise
        click.echo(f"migrate: {error}", err=True)
        _show_details(error)
        sys.exit(COULD_NOT)
    except Exception as error:
        if click.get_current_context().find_root().obj:
            raise
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        click.echo(f"migrate: internal error ({what}); please report what --debug shows", err=True)
        sys.exit(COULD_NOT)


def _show_details(error: Exception) -> None:
    """Show on stderr what an error carries beside its line: refused keys, a script's last output."""
    from converters.errors import RefusedKeysError

    if isinstance(error, RefusedKeysError):
        from migrate.views.weights import plan_table

        _show(plan_table(error.plan.refused), err=True)
    elif output := getattr(error, "output", ""):
        click.echo(output, err=True)


def _console(*, err: bool = False) -> Console:
    from rich.console import Console

    # A pipe or a log has no width of its own: wrapping at 80 columns would only break lines.
    stream = sys.stderr if err else sys.stdout
    return Console(stderr=err, width=None if stream.isatty() else 180, highlight=False)


def _show(*renderables: RenderableType, err: bool = False) -> None:
    console = _console(err=err)
    for renderable in renderables:
        console.print(renderable)


def _show_json(value: Any) -> None:
    import json

    click.echo(json.dumps(value, indent=2))


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is being done: a spinner on a terminal, lines in a log."""
    if quiet:
        yield lambda _: None
        return
    console = _console(err=True)
    if not console.is_terminal:
        yield lambda message: click.echo(f"… {message}", err=True)
        return
    with console.status("starting") as status:
        yield status.update


@commands.command(
    epilog="Example: migrate rewrite train.py --diff",
    short_help="Rewrite DDP scripts for torch_xla.",
)
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write to this file or folder."
)
@click.option("--diff", is_flag=True, help="Print the change, write nothing.")
@click.option("--in-place", is_flag=True, help="Overwrite the script itself.")
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 if something would change.")
@click.option("--force", is_flag=True, help="Overwrite an existing rewritten file or folder.")
@as_json
def rewrite(
    paths: tuple[Path, ...],
    output: Path | None,
    diff: bool,
    in_place: bool,
    check: bool,
    force: bool,
    json_output: bool,
) -> None:
    """Rewrite DDP scripts, or a folder of them, into torch_xla launch/step form.

    Writes SCRIPT_xla.py beside each untouched SCRIPT.py; of a folder, rewritten files and copies of the
    others to the folder -o. What no rule handles is listed with file and line; exit code 1 then.
    """
    if output is not None and (in_place or len(paths) > 1):
        raise click.UsageError("-o names one file or folder: give one path, and not --in-place")
    if sum((diff, in_place, check)) > 1:
        raise click.UsageError("--diff, --in-place and --check exclude one another")
    writes = not (diff or check)
    if len(paths) == 1 and paths[0].is_dir() and (output or not writes):
        with _errors():
            sys.exit(
                _rewrite_folder(paths[0], output if writes else None, diff, force, json_output)
            )
    with _errors():
        from migrate.rewrite.engine import rewrite as rewrite_script
        from migrate.rewrite.write import beside, write_all
        from migrate.views.rewrite import rewrite_as_json, rewrite_summary

        rewrites = [rewrite_script(path) for path in paths]
        targets = [path if in_place else output or beside(path) for path in paths]
        pairs = list(zip(rewrites, targets, strict=True))
        if writes:
            write_all(pairs, force=force or in_place)
        if json_output:
            _show_json([rewrite_as_json(done, to if writes else None) for done, to in pairs])
        for done, target in () if json_output else pairs:
            if diff:
                click.echo(done.diff(target), nl=False)
            # With --diff, stdout is a patch and nothing else.
            _show(*rewrite_summary(done, target if writes else None), err=diff)
    left = any(done.findings or (check and done.changed) for done in rewrites)
    sys.exit(FINDINGS if left else FINE)


@commands.command(
    epilog="Example: migrate check train.py lib/ --select XLA1,XLA3",
    short_help="Report what would fail, hang or be slow on a TPU.",
)
@click.argument("paths", metavar="PATH...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--select", multiple=True, metavar="CODES", help="Only these: XLA201, or XLA2.")
@click.option("--ignore", multiple=True, metavar="CODES", help="All but these.")
@click.option(
    "--format", "form", default="text", type=click.Choice(["text", "json", "sarif", "github"])
)
@click.option("--explain", metavar="CODE", help="Print the page of a hazard; `list` lists them.")
@as_json
def check(
    paths: tuple[Path, ...], select: tuple[str, ...], ignore: tuple[str, ...], **options: Any
) -> None:
    """Report TPU hazards in scripts and folders, as a linter does. Nothing is changed.

    `[tool.migrate]` in pyproject.toml has select, ignore, exclude, severity; `# migrate: ignore[CODE]`
    silences a line. Exit code 1 if there is an error.
    """
    if not paths and not options["explain"]:
        raise click.UsageError("give the path of a script or a folder")
    with _errors():
        from migrate.hazards.config import find_config
        from migrate.hazards.project import check_paths
        from migrate.views.check import check_lines, explanation

        if options["explain"]:
            click.echo(explanation(options["explain"]))
            return
        config = find_config(paths[0]).narrowed(select, ignore)
        form = "json" if options["json_output"] else options["form"]
        with _progress(quiet=form != "text") as progress:
            checked = check_paths(paths, config, progress)
        for line in check_lines(checked, form):
            click.echo(line)
    sys.exit(FINDINGS if checked.failed else FINE)


def _rewrite_folder(folder: Path, to: Path | None, diff: bool, force: bool, json: bool) -> int:
    """Do what `rewrite` does for a whole folder; return the exit code."""
    from migrate.rewrite.write import rewrite_into
    from migrate.views.folder import folder_as_json, folder_summary

    with _progress(quiet=json) as progress:
        done = rewrite_into(folder, to, force=force, progress=progress)
    if json:
        _show_json(folder_as_json(done, to))
    else:
        if diff:
            click.echo(done.diff(), nl=False)
        _show(*folder_summary(done, to), err=diff)
    would_change = to is None and not diff and done.changed
    return FINDINGS if done.left_to_do or done.problems or would_change else FINE


@commands.command(
    epilog="Example: migrate run train_xla.py --replicas 2 -- --epochs 1",
    short_help="Run a script on a TPU, or on simulated replicas.",
)
@takes_a_script
@as_json
def run(
    script: Path, args: tuple[str, ...], replicas: int, timeout: float | None, json_output: bool
) -> None:
    """Run a torch_xla script on a TPU where there is one, else on N replicas simulated on the CPU.

    Each replica is a process with real torch_xla on XLA:CPU; collectives run over gloo. What follows
    `--` goes to the script. Exit code 1 if the script fails. With --json, what the script prints goes to
    stderr.
    """
    with _errors():
        from migrate.prove.run import run_script

        result = run_script(
            script,
            args,
            side="xla",
            replicas=replicas,
            timeout=timeout,
            output="stderr" if json_output else "inherit",
        )
    if json_output:
        _show_json(
            {"script": str(script), "returncode": result.returncode, "seconds": result.seconds}
        )
    if result.returncode != 0:
        click.echo(f"migrate: {script} ended with exit code {result.returncode}", err=True)
        sys.exit(FINDINGS)


@commands.command(
    epilog="Example: migrate prove train.py --replicas 2 -- --epochs 1",
    short_help="Prove that the rewritten script trains the same.",
)
@takes_a_script
@click.option(
    "--rewritten",
    type=click.Path(path_type=Path),
    help="The rewritten script, where you have edited it; by default it is made on the fly.",
)
@as_json
def prove(
    script: Path,
    args: tuple[str, ...],
    replicas: int,
    rewritten: Path | None,
    timeout: float | None,
    json_output: bool,
) -> None:
    """Run the original and its rewrite, and compare losses and weights step by step.

    The original runs unedited on the CPU (N ranks over gloo), the rewrite on N XLA replicas. The loss
    of every step of every rank and the final weights are compared; exit code 1 if they differ, with the
    first place where they part and what differs there.
    """
    with _errors(), contextlib.ExitStack() as stack:
        from migrate.prove.proof import prove as prove_scripts
        from migrate.rewrite.engine import rewrite as rewrite_script
        from migrate.rewrite.temporary import written_beside
        from migrate.views.prove import proof_as_json, proof_summary
        from migrate.views.rewrite import findings_summary

        if rewritten is None:
            done = rewrite_script(script)
            # What is left to do by hand is the first suspect, should the two sides part.
            _show(*findings_summary(done), err=True)
            rewritten = stack.enter_context(written_beside(done))
        with _progress(quiet=json_output) as progress:
            proof = prove_scripts(
                script, rewritten, args, replicas=replicas, timeout=timeout, progress=progress
            )
    if json_output:
        _show_json(proof_as_json(proof))
    else:
        _show(*proof_summary(proof))
    sys.exit(FINE if proof.equal else FINDINGS)


@commands.command(
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
    with _errors():
        from converters import convert
        from migrate.views.weights import conversion_as_json, conversion_summary

        with _progress(quiet=json_output) as progress:
            progress(f"converting {checkpoint}")
            done = convert(
                checkpoint, model=model, output=output, format=file_format, key=key, overwrite=force
            )
        if json_output:
            _show_json(conversion_as_json(done))
        else:
            _show(*conversion_summary(done))


@commands.command(
    epilog="Example: migrate doctor", short_help="Check versions, devices, environment."
)
@as_json
def doctor(json_output: bool) -> None:
    """Check this environment: versions, devices, wrong environment variables, what is missing.

    Exit code 1 if something would go wrong; each line says what to do.
    """
    from migrate.doctor import diagnose
    from migrate.views.doctor import diagnosis_as_json, diagnosis_summary

    with _progress(quiet=json_output) as progress:
        diagnosis = diagnose(progress=progress)
    if json_output:
        _show_json(diagnosis_as_json(diagnosis))
    else:
        _show(*diagnosis_summary(diagnosis))
    sys.exit(FINE if diagnosis.fit else FINDINGS)
