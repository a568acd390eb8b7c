"""Terminal view and JSON of `migrate launch`: the job, its warnings, its commands, the meaning of lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from migrate.counts import many
from migrate.launch.explain import Meaning
from migrate.launch.pipeline import WrittenJob
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType


def launch_summary(written: WrittenJob, explain: bool) -> Iterator[RenderableType]:
    """Yield what was written, what to know, and what to run."""
    job = written.job
    kind = "spot" if job.spot else "on-demand"
    hosts, chips = many(job.product.hosts, "host"), many(job.product.chips_per_host, "chip")
    yield (
        f"[bold]{escape(str(written.folder))}[/bold]: {job.program.entry} ({job.program.framework}) on "
        f"{job.product.name} in {job.zone}, {hosts} with {chips} each, {kind}, by {written.launcher.title}"
    )
    yield (
        f"{job.program.style.start}; {job.program.resume.sentence}; {many(len(job.program.files), 'file')} "
        "of the program"
    )
    for warning in job.warnings:
        yield f"warning: {escape(warning)}"
    for note in job.notes:
        yield f"note: {escape(note)}"
    if written.validation is not None:
        yield _validation(written)
    yield f"\nrun in {escape(str(written.folder))}:"
    for name, command in asdict(written.commands).items():
        yield f"  {name:7} {escape(command)}"
    if explain:
        for name, meanings in written.meanings().items():
            if meanings:
                yield f"\n[bold]{name}[/bold]"
                yield _meanings(meanings)


def _validation(written: WrittenJob) -> str:
    validation = written.validation
    assert validation is not None
    if validation.ran:
        return f"checked: {escape(validation.validator)} accepts it"
    if validation.install:
        return (
            f"checked: by {escape(validation.validator)} only; to check by {written.launcher.title}'s own "
            f"parser: {escape(validation.install)}"
        )
    return f"checked: by {escape(validation.validator)}"


def _meanings(meanings: list[Meaning]) -> RenderableType:
    table = plain_table("line", "", "meaning")
    for meaning in meanings:
        table.add_row(str(meaning.number), escape(meaning.line), escape(meaning.text))
    return table


def launch_as_json(written: WrittenJob, explain: bool) -> dict[str, Any]:
    """Return the job as plain values."""
    job = written.job
    values: dict[str, Any] = {
        "folder": str(written.folder),
        "name": job.name,
        "launcher": written.launcher.name,
        "framework": str(job.program.framework),
        "entry": job.program.entry.as_posix(),
        "start": str(job.program.style.start),
        "resume": str(job.program.resume),
        "slice": job.product.name,
        "zone": job.zone,
        "hosts": job.product.hosts,
        "chips_per_host": job.product.chips_per_host,
        "spot": job.spot,
        "bucket": job.bucket,
        "files": [file.name for file in written.files],
        "warnings": list(job.warnings),
        "notes": list(job.notes),
        "commands": asdict(written.commands),
        "validation": None if written.validation is None else asdict(written.validation),
    }
    if explain:
        values["meanings"] = {
            name: [asdict(meaning) for meaning in meanings]
            for name, meanings in written.meanings().items()
        }
    return values
