"""`migrate weights` of a torch checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from migrate.cli.fitting import by_values, fitted
from migrate.cli.results import CommandResult, Reporter
from migrate.cli.show import FINDINGS, FINE
from migrate.cli.weights_request import ManyHosts, ToFlax

if TYPE_CHECKING:
    from converters.checkpoint.source import Source
    from converters.hosts import Process
    from converters.remote.names import ResolvedName


def to_flax(request: ToFlax, reporter: Reporter) -> CommandResult:
    """Convert a torch checkpoint, or show the plan of that."""
    from converters.atomic import require_writable
    from migrate.report.text import fitting

    conversion = request.conversion
    if request.save_mapping is not None:
        require_writable(request.save_mapping, overwrite=conversion.overwrite)
    if request.both_models is not None:
        checkpoint = _understood(request)
        _require_free(request, checkpoint)
        torch, flax = _module(conversion.plan.model, checkpoint.source), conversion.plan.target
        with fitted(torch, flax, request.both_models, reporter) as models:
            fit = {"fit": fitting.fit_as_json(models.fit)}
            if not models.written:
                return CommandResult(FINDINGS, fitting.not_written(models.fit), fit)
            by_mapping = _by_mapping(request, models.mapping)
            result = _converted(by_mapping, reporter, models.fit.computed)
            return CommandResult(
                result.code,
                (*result.summary, *fitting.fit_summary(models.fit)),
                {**result.values, **fit},
            )
    if request.port is not None:
        return _into_port(request, request.port, reporter)
    if request.same_values is not None:
        checkpoint = _understood(request)
        _require_free(request, checkpoint)
        with by_values(checkpoint, request.same_values, reporter) as mapping:
            return _converted(_by_mapping(request, mapping), reporter)
    return _converted(request, reporter)


def _by_mapping(request: ToFlax, mapping: Path) -> ToFlax:
    """Return the request with a mapping file that says what the target would."""
    plan = replace(request.conversion.plan, model=None, target=None, drop=(), mapping=mapping)
    return replace(request, conversion=replace(request.conversion, plan=plan))


def _into_port(request: ToFlax, folder: Path, reporter: Reporter) -> CommandResult:
    """Convert for a folder of `migrate port`: by its mapping, with the arrays that torch does not save."""
    from converters.mapping import Outcome
    from converters.mapping.file import load_mapping
    from converters.planning import planned
    from migrate.parity.sides.load import load_port
    from migrate.parity.sides.target import PORT_MAPPING

    port = load_port(folder)
    mapping = folder / PORT_MAPPING
    if not any(rule.outcome is Outcome.REFUSED for rule in load_mapping(mapping).rules):
        request = _by_mapping(request, mapping)
    elif request.conversion.plan.model is None:
        raise click.UsageError(
            "torch computes some weights of this port's original: add its torch module, --model"
        )
    else:
        plan = replace(request.conversion.plan, target=None)
        request = replace(request, conversion=replace(request.conversion, plan=plan))
    planning = planned(_understood(request), request.conversion.plan)
    if not planning.plan.refused:
        port.require([leaf.path for leaf in planning.leaves])
    return _converted(request, reporter, port.constants)


def _understood(request: ToFlax) -> ResolvedName:
    from converters.remote.names import choose_file, resolve_name

    checkpoint = resolve_name(request.checkpoint)
    return checkpoint if request.file is None else choose_file(checkpoint, request.file)


def _require_free(request: ToFlax, checkpoint: ResolvedName) -> None:
    """Refuse an output that is there before minutes go into models that are run, or values compared."""
    from converters.conversion import require_free

    if not request.dry_run:
        asked = request.conversion
        require_free(
            checkpoint,
            asked.output,
            asked.format,
            overwrite=asked.overwrite,
            shard_bytes=asked.shard_bytes,
        )


def _module(model: str | None, place: Source) -> str | None:
    """The torch module: what is named, else that of a Hugging Face folder."""
    if model is not None or not isinstance(place, Path):
        return model
    folder = place if place.is_dir() else place.parent
    return str(folder) if (folder / "config.json").is_file() else None


def _converted(
    request: ToFlax, reporter: Reporter, extra: Mapping[str, Any] | None = None
) -> CommandResult:
    """Convert, or show the plan of it; `extra` are arrays that no checkpoint holds."""
    from converters.conversion import run_conversion
    from converters.hosts import met
    from converters.mapping.file import save_mapping
    from converters.optimizer.order import read_order
    from converters.planning import planned
    from converters.planning_apart import planned_apart
    from migrate.report.text import weights as views

    file, conversion = request.save_mapping, request.conversion
    state = conversion.optimizer
    if state is not None and isinstance(state.order, str):
        state = replace(state, order=read_order(state.order))
    if request.dry_run:
        planning = planned(_understood(request), conversion.plan)
        if file is not None:
            save_mapping(planning.plan, file, planning.api, conversion.overwrite)
        code = FINDINGS if planning.plan.refused else FINE
        return CommandResult(
            code,
            views.plan_summary(planning.plan, planning.notes),
            views.plan_as_json(planning.plan, planning.notes, planning.checkpoint.options),
        )
    output = conversion.output
    process = _process(None if output is None else str(output), request.hosts)
    with met(process, request.hosts.wait, reporter.report) as hosts:
        done = run_conversion(
            replace(conversion, checkpoint=_understood(request), optimizer=state),
            progress=reporter.moved,
            hosts=hosts,
            planner=planned if state else planned_apart,
            extra=extra,
        )
    if file is not None and hosts.first:
        save_mapping(done.plan, file, done.api, conversion.overwrite)
    # In a log of all hosts the whole table stands once.
    summary = views.conversion_summary(done) if hosts.first else views.conversion_end(done)
    return CommandResult(FINE, summary, views.conversion_as_json(done))


def _process(output: str | None, hosts: ManyHosts) -> Process:
    """Return the number of this process. Output to a local path is shared only on request."""
    from converters.hosts import Process, detected, parse_process
    from converters.remote.names import is_url

    if hosts.process is not None:
        return parse_process(hosts.process, hosts.coordinator)
    here = detected() if hosts.coordinator or (output is not None and is_url(output)) else None
    if hosts.coordinator is None:
        return here or Process(0, 1)
    if here is None:
        raise click.UsageError("--coordinator needs the number of this process: add --process 3/16")
    return parse_process(f"{here.index}/{here.count}", hosts.coordinator)
