"""`migrate run`."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

import click

from migrate.cli.options import as_html, as_json, takes_a_script
from migrate.cli.progress import in_lines, working
from migrate.cli.rewritten import rewritten_for_the_run, rewritten_names
from migrate.cli.show import FINDINGS, FINE, errors, show, show_json


@click.command(
    epilog="Example: migrate run train_xla.py --replicas 2 -- --epochs 1",
    short_help="Run a script on a TPU, or on simulated replicas.",
)
@takes_a_script
@click.option(
    "--rewrite",
    is_flag=True,
    help="Rewrite the script and the files that it imports first, for this run only.",
)
@click.option("--torchrun", is_flag=True, help="Start the replicas with torchrun.")
@click.option(
    "--report/--no-report",
    default=True,
    show_default=True,
    help="Record what XLA compiles and executes, and why. Adds time to each step.",
)
@as_html
@as_json
def run(
    script: Path,
    args: tuple[str, ...],
    replicas: int,
    timeout: float | None,
    rewrite: bool,
    torchrun: bool,
    report: bool,
    html: Path | None,
    json_output: bool,
) -> None:
    """Run a torch_xla script on a TPU, or on N replicas simulated on the CPU.

    Each simulated replica is a process with real torch_xla on XLA:CPU; collectives run over gloo. Arguments
    after `--` go to the script. With --json, the output of the script goes to stderr.

    The report lists step times, compilations with their causes, lines that waited for a value, and
    operators that ran on the CPU. If a script fails under --rewrite, the original runs on the CPU, which
    shows whether the error is its own.

    The exit code is 1 if the script fails, if replicas run different graphs, if no step boundary ends the
    training steps, if an optimizer trains nothing, if too few replicas start, or if XLA runs nothing.
    It is 2 if replicas wait for each other forever.
    """
    if html is not None and not report:
        raise click.UsageError("--html and --no-report cannot be combined")
    with errors(), contextlib.ExitStack() as stack:
        from converters.installing import require_installed
        from migrate.observe.report import observed
        from migrate.progress import no_progress
        from migrate.prove.failure import whose
        from migrate.prove.progress import ObservedSteps, steps_told
        from migrate.prove.run import require_script, run_script
        from migrate.report.html.page import check_page_target
        from migrate.report.html.run import write_run_page
        from migrate.report.text.run import run_as_json, run_summary
        from migrate.versions import NEEDS

        if html is not None:
            check_page_target(html)
        require_script(script)
        require_installed(*NEEDS["run"])
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="migrate-run-")))
        doing = f"running {script}"
        started = rewritten_for_the_run(script, stack) if rewrite else script
        # The script prints to the same terminal: lines, no bar.
        with (
            contextlib.nullcontext(no_progress) if json_output else in_lines() as progress,
            steps_told(lambda done: progress(doing, done, 0, "step"), ObservedSteps(folder)),
        ):
            progress(doing)
            result = run_script(
                started,
                args,
                side="xla",
                replicas=replicas,
                timeout=timeout,
                observe_dir=folder if report else None,
                output="stderr" if json_output else "inherit",
                start="torchrun" if torchrun else None,
            )
        named = rewritten_names(script, started) if rewrite else {}
        seen = observed(folder, named) if report else None
        said = ""
        if rewrite and result.returncode:
            with working(quiet=json_output) as progress:
                progress(
                    f"{script} failed: running the original on the CPU to find out whether it fails too"
                )
                said = whose(script, args, replicas, result.seconds)
        if html is not None and seen is not None:
            write_run_page(seen, script, html)
    if json_output:
        show_json(
            {
                "script": str(script),
                "returncode": result.returncode,
                "seconds": result.seconds,
                "original": said or None,
                "report": run_as_json(seen) if seen else None,
            }
        )
    elif seen is not None:
        show("", *run_summary(seen))
    if result.returncode != 0:
        click.echo(f"migrate: {script} ended with exit code {result.returncode}", err=True)
        if said:
            click.echo(f"migrate: {said}", err=True)
    elif seen is not None and not seen.steps and not rewrite:
        advice = "if it is a CUDA script, --rewrite rewrites it for the run"
        click.echo(f"migrate: {script} used no XLA device; {advice}", err=True)
    has_findings = seen and (not seen.steps or seen.divergences or seen.unended or seen.untrained)
    few = result.returncode == 0 and _too_few(
        script, max(result.ranks, seen.ranks if seen else 0, 1), replicas, torchrun
    )
    sys.exit(FINDINGS if result.returncode or has_findings or few else FINE)


def _too_few(script: Path, ran: int, replicas: int, torchrun: bool) -> bool:
    """Say where fewer replicas ran than were asked for; whether that is a finding.

    A script that knows no ranks may run alone, unless somebody has asked for more.
    """
    from click.core import ParameterSource

    from shims._started.script import find_start
    from shims.tpu import tpu_present

    if ran >= replicas or tpu_present():
        return False
    started = find_start(script).style in ("environment", "option") and not torchrun
    advice = "this script is started by torchrun: --torchrun"
    if not started:
        advice = "the script starts no others, as torch_xla.launch(fn) would"
    click.echo(f"migrate: {ran} of {replicas} replicas; {advice}", err=True)
    source = click.get_current_context().get_parameter_source("replicas")
    return started or source is ParameterSource.COMMANDLINE
