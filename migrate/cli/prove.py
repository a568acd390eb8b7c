"""`migrate prove`."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from migrate.cli import program, recording
from migrate.cli.grouping import SectionedCommand
from migrate.cli.options import as_html, as_json, configuration, takes_a_script, target
from migrate.cli.progress import working
from migrate.cli.rewritten import copied_for_the_run, rewritten_with_findings
from migrate.cli.show import FINDINGS, FINE, errors, show, show_json
from migrate.counts import many
from migrate.prove.settings import AMPS, Amp, Settings

if TYPE_CHECKING:
    from migrate.catalogue.target import Target
    from migrate.prove.proof import Proof
    from migrate.prove.resume import ResumeProof

# What the findings of the rewrite mean beside the verdict.
_LEFT = (
    "note: {findings} left to do by hand, named above, did not stop this run. {look} before a run on a TPU: "
    "the proof does not cover speed, hangs on a TPU, and lines that this run did not reach"
)
# As `python -m shims --start` knows them.
STARTS = ("environment", "option", "spawn", "alone")


@click.command(
    cls=SectionedCommand,
    sections={
        "Common options": ["--target", "--replicas", "--steps", "--rewritten", "--html"],
        "Runs": ["--amp", "--timeout", "--deterministic", "--start", "--fail-on"],
        "Resuming from a checkpoint": ["--from-checkpoint", "--resume-args"],
        "Another original, or a JAX program": ["--record", "--against"],
    },
    epilog="Example: migrate prove train.py --replicas 2 -- --epochs 1",
    short_help="Prove that the rewritten script trains the same.",
)
@takes_a_script
@target
@click.option(
    "--rewritten",
    type=click.Path(path_type=Path),
    help="Rewritten script or project to test, such as one that you have edited. Default: rewrite the "
    "script and its imports on the fly.",
)
@click.option(
    "--deterministic/--no-deterministic",
    default=True,
    show_default=True,
    help="Turn dropout off, and give both sides the same random numbers on the device.",
)
@click.option(
    "--amp",
    type=click.Choice(AMPS),
    default="bf16",
    show_default=True,
    help="Autocast on both sides: bf16 replaces float16, keep leaves the script's type, off disables it.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="K",
    help="Stop each rank after K optimizer steps.",
)
@click.option(
    "--from-checkpoint",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Prove that training resumes on the other side too from this checkpoint, which the script writes.",
)
@click.option(
    "--resume-args",
    metavar="TEXT",
    help="Additional arguments of the script for the runs that start from the checkpoint.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["partial"]),
    help="Set exit code 1 also if only the first steps were judged, because the noise of later steps is too "
    "large.",
)
@click.option(
    "--start",
    type=click.Choice(STARTS),
    help="Launch method of the original, if it supports several.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Run only the original, on the GPUs of this machine, and record its steps in this file.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Compare the rewrite with a file of --record, from this machine or another one. A folder: compare "
    "the JAX program that `migrate train` wrote there with the script.",
)
@as_html
@as_json
def prove(
    script: Path,
    args: tuple[str, ...],
    replicas: int,
    target: Target | None,
    rewritten: Path | None,
    timeout: float | None,
    deterministic: bool,
    amp: Amp,
    steps: int | None,
    from_checkpoint: Path | None,
    resume_args: str | None,
    fail_on: str | None,
    start: str | None,
    record: Path | None,
    against: Path | None,
    html: Path | None,
    json_output: bool,
) -> None:
    """Run the original and its rewrite, and compare losses and weights step by step.

    The original runs unedited on the CPU in its CUDA branch, with N ranks over gloo; the rewrite runs on N
    replicas of torch_xla, or of torch_tpu. The proof compares the loss of every step on every rank, and the
    final weights. The exit code is 1 if they differ; the report then names the first difference.

    If the script trains on GPUs today, use --record FILE on that machine and --against FILE here. With
    --against FOLDER, a program of `migrate train` is compared with its script instead: interface, gradients,
    optimizer, losses, weights and data, over K updates.
    """
    recording.require_one_way(record, against, from_checkpoint, rewritten, html)
    if resume_args is not None and from_checkpoint is None:
        raise click.UsageError("--resume-args needs --from-checkpoint")
    if against is not None and against.is_dir():
        program.prove_program(against, script, args, steps, timeout, json_output)
    with errors(), contextlib.ExitStack() as stack:
        from converters.installing import require_installed
        from migrate.prove.proof import prove as prove_scripts
        from migrate.prove.resume import prove_resuming
        from migrate.prove.run import require_script
        from migrate.prove.runtimes import RUNTIMES
        from migrate.report.html.page import check_page_target
        from migrate.report.html.prove import write_prove_page
        from migrate.report.text import prove as views

        proof: Proof | ResumeProof
        settings = Settings(deterministic, amp, steps, start, timeout)
        if html is not None:
            check_page_target(html)
        require_script(script)
        if record is not None:
            require_installed("torch")
            recording.record(script, args, record, settings, json_output)
            return
        package = configuration(script, target=target).target
        RUNTIMES[package].require(replicas)
        left = 0
        if against is not None:
            # Before the script is rewritten: a file that does not belong to this script is reported at once.
            recording.require_reference(against, script, args)
        if rewritten is None:
            rewritten, left = rewritten_with_findings(script, stack, package)
        elif rewritten.is_dir():
            rewritten = copied_for_the_run(rewritten, script, stack)
        require_script(rewritten, or_folder=True)
        with working(quiet=json_output) as progress:
            shared: dict[str, Any] = {
                "replicas": replicas,
                "settings": settings,
                "progress": progress,
                "target": package,
            }
            if against is not None:
                proof = recording.prove_against(
                    against, script, rewritten, args, timeout, progress, package
                )
                summary, plain = views.proof_summary(proof), views.proof_as_json(proof)
            elif from_checkpoint is None:
                proof = prove_scripts(script, rewritten, args, **shared)
                summary, plain = views.proof_summary(proof), views.proof_as_json(proof)
            else:
                more = shlex.split(resume_args or "")
                proof = prove_resuming(
                    script, rewritten, args, from_checkpoint, resume_args=more, **shared
                )
                summary, plain = views.resume_summary(proof), views.resume_as_json(proof)
        if html is not None:
            write_prove_page(proof, script, html, args)
    if json_output:
        show_json(plain)
    else:
        *lines, verdict = summary
        show(*lines)
        if left and proof.equal:
            click.echo(
                _LEFT.format(
                    findings=many(left, "finding"), look=f"Look at {'it' if left == 1 else 'them'}"
                )
            )
        show(verdict)
    incomplete = fail_on is not None and proof.partial
    sys.exit(FINE if proof.equal and not incomplete else FINDINGS)
