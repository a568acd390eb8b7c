"""`migrate run`."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from migrate.catalogue.target import TPU, Target
from migrate.cli.options import as_html, as_json, configuration, takes_a_script, target
from migrate.cli.progress import in_lines, working
from migrate.cli.rewritten import rewritten_for_the_run, rewritten_names
from migrate.cli.show import FINDINGS, FINE, errors, show, show_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from migrate.observe.report import Observed


@click.command(
    epilog="Example: migrate run train_xla.py --replicas 2 -- --epochs 1",
    short_help="Run a script on a TPU, or on simulated replicas.",
)
@takes_a_script
@target
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
    target: Target | None,
    rewrite: bool,
    torchrun: bool,
    report: bool,
    html: Path | None,
    json_output: bool,
) -> None:
    """Run a torch_xla script on a TPU, or on N replicas simulated on the CPU.

    Each simulated replica is a process with real torch_xla on XLA:CPU; collectives run over gloo. With
    --target torch_tpu, the script is for torch_tpu, and replicas are always simulated. Arguments after `--`
    go to the script. With --json, the output of the script goes to stderr.

    The report lists step times, compilations with their causes, lines that waited for a value, and
    operators that ran on the CPU. If a script fails under --rewrite, the original runs on the CPU, which
    shows whether the error is its own.

    For torch_tpu, the report lists steps, losses and compilations of each rank, shapes that change, and
    operators that are not implemented.

    The exit code is 1 if the script fails, if replicas run different graphs, if no step boundary ends the
    training steps, if an optimizer trains nothing, if too few replicas start, or if XLA runs nothing.
    It is 2 if replicas wait for each other forever.
    """
    if html is not None and not report:
        raise click.UsageError("--html and --no-report cannot be combined")
    with errors(), contextlib.ExitStack() as stack:
        from migrate.progress import no_progress
        from migrate.prove.errors import CudaScriptError
        from migrate.prove.failure import whose
        from migrate.prove.progress import ObservedSteps, steps_told
        from migrate.prove.run import joins_over_nccl, require_script, run_script
        from migrate.prove.runtimes import RUNTIMES
        from migrate.report.html.page import check_page_target
        from migrate.report.html.run import write_run_page
        from migrate.syntax.source import require_python

        if html is not None:
            check_page_target(html)
        require_script(script)
        require_python(script.read_bytes(), script)
        if not rewrite and joins_over_nccl(script):
            raise CudaScriptError(
                f"{script} is a CUDA script: it joins a process group over NCCL",
                "add --rewrite, which rewrites it for the run",
            )
        package = configuration(script, target=target).target
        if package == TPU and html is not None:
            raise click.UsageError("--html has no page for torch_tpu: --json has its report")
        runtime = RUNTIMES[package]
        runtime.require(replicas)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="migrate-run-")))
        doing = f"compiling and running {script}"
        started = rewritten_for_the_run(script, stack, package) if rewrite else script
        # The script prints to the same terminal: lines, no bar.
        with (
            contextlib.nullcontext(no_progress) if json_output else in_lines() as progress,
            steps_told(
                lambda done: progress(doing, done, 0, "optimizer step"), ObservedSteps(folder)
            ),
        ):
            progress(doing)
            result = run_script(
                started,
                args,
                side=runtime.side,
                replicas=replicas,
                timeout=timeout,
                observe_dir=folder if report else None,
                output="stderr" if json_output else "inherit",
                start="torchrun" if torchrun else None,
            )
        named = rewritten_names(script, started) if rewrite else {}
        seen = None
        if report:
            look = _look_at_kernels if package == TPU else _look_at_graphs
            seen = look(folder, named, runtime.limits(replicas))
        said = ""
        if rewrite and result.returncode:
            with working(quiet=json_output) as progress:
                progress(
                    f"{script} failed: running the original on the CPU to find out whether it fails too"
                )
                said = whose(script, args, replicas, result.seconds, package)
        if html is not None and seen is not None and seen.graphs is not None:
            write_run_page(seen.graphs, script, html)
    if json_output:
        show_json(
            {
                "script": str(script),
                "returncode": result.returncode,
                "seconds": result.seconds,
                "original": said or None,
                "report": seen.plain if seen else None,
            }
        )
    elif seen is not None:
        show("", *seen.lines)
    if result.returncode != 0:
        click.echo(f"migrate: {script} ended with exit code {result.returncode}", err=True)
        if said:
            click.echo(f"migrate: {said}", err=True)
    if seen is not None and not seen.ran and not rewrite:
        advice = "if it is a CUDA script, --rewrite rewrites it for the run"
        device = "TPU" if package == TPU else "XLA device"
        click.echo(f"migrate: {script} used no {device}; {advice}", err=True)
    has_findings = seen is not None and seen.has_findings
    few = result.returncode == 0 and _too_few(
        script, max(result.ranks, seen.ranks if seen else 0, 1), replicas, torchrun, package
    )
    sys.exit(FINDINGS if result.returncode or has_findings or few else FINE)


@dataclass(frozen=True)
class _RunReport:
    """Parts of a report that the command needs, whichever package ran the script.

    Attributes:
        lines: the report for the terminal.
        plain: the report for JSON.
        ran: whether anything ran on the device.
        has_findings: whether the exit code is 1.
        ranks: number of ranks with a record.
        graphs: the report on XLA's graphs, which has a page.
    """

    lines: Iterable[RenderableType]
    plain: Any
    ran: bool
    has_findings: bool
    ranks: int
    graphs: Observed | None = None


def _look_at_graphs(folder: Path, names: Mapping[Path, str], limits: Sequence[str]) -> _RunReport:
    """Read the report of a run on torch_xla."""
    from migrate.observe.records import errors_of
    from migrate.observe.report import observed
    from migrate.prove.failure import is_own_ending
    from migrate.report.text.run import run_as_json, run_summary

    # A replica that raised an exception, or left, has run less than the others: that is no parting.
    seen = observed(folder, names, stopped=any(map(is_own_ending, errors_of(folder))))
    return _RunReport(
        run_summary(seen),
        run_as_json(seen),
        bool(seen.steps),
        not seen.steps or bool(seen.divergences or seen.unended or seen.untrained),
        seen.ranks,
        seen,
    )


def _look_at_kernels(folder: Path, names: Mapping[Path, str], limits: Sequence[str]) -> _RunReport:
    """Read the report of a run on torch_tpu."""
    from migrate.observe.eager.report import reported
    from migrate.report.text.run_eager import eager_as_json, eager_summary

    seen = reported(folder, names, "; ".join(limits))
    ran = any(rank.operators for rank in seen.ranks)
    return _RunReport(
        eager_summary(seen), eager_as_json(seen), ran, seen.has_findings, len(seen.ranks)
    )


def _too_few(script: Path, ran: int, replicas: int, torchrun: bool, package: Target) -> bool:
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
        launch = "mp.spawn(fn)" if package == TPU else "torch_xla.launch(fn)"
        advice = f"the script starts no others, as {launch} would"
    click.echo(f"migrate: {ran} of {replicas} replicas; {advice}", err=True)
    source = click.get_current_context().get_parameter_source("replicas")
    return started or source is ParameterSource.COMMANDLINE
