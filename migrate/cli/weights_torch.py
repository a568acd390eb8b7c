"""`migrate weights --to torch`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from migrate.cli.fitting import fitted
from migrate.cli.results import CommandResult, Reporter
from migrate.cli.show import FINDINGS, FINE
from migrate.cli.weights_request import ToTorch


def to_torch(request: ToTorch, reporter: Reporter) -> CommandResult:
    """Restore a torch state dict from a Flax pytree, or show the plan of that."""
    from converters.remote.names import require_local
    from converters.reverse import require_free
    from migrate.report.text import fitting

    for name in filter(None, (request.checkpoint, request.output)):
        require_local(name, "--to torch")
    if request.both_models is None:
        return _restored(request)
    if not request.dry_run:
        require_free(
            request.checkpoint, request.output, request.format, overwrite=request.overwrite
        )
    with fitted(request.target, request.model, request.both_models, reporter) as models:
        fit = {"fit": fitting.fit_as_json(models.fit)}
        if not models.written:
            return CommandResult(FINDINGS, fitting.not_written(models.fit), fit)
        result = _restored(replace(request, model=request.target, mapping=models.mapping))
        return CommandResult(
            result.code,
            (*result.summary, *fitting.fit_summary(models.fit)),
            {**result.values, **fit},
        )


def _restored(request: ToTorch) -> CommandResult:
    from converters.optimizer.convert import optimizer_to_torch
    from converters.reverse import default_optimizer_output
    from converters.reverse import to_torch as restore
    from migrate.report.text import weights as views

    done = restore(
        request.checkpoint,
        output=request.output,
        format=request.format,
        model=request.model,
        example=request.example,
        mapping=request.mapping,
        overwrite=request.overwrite,
        dry_run=request.dry_run,
    )
    if request.optimizer is not None and not request.dry_run:
        written = default_optimizer_output(done.output or Path(request.checkpoint))
        optimizer_to_torch(request.optimizer, written, overwrite=request.overwrite)
        done = replace(done, notes=(*done.notes, f"{written}: the state of the optimizer"))
    return CommandResult(FINE, views.reversal_summary(done), views.reversal_as_json(done))
