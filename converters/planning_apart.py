"""Plan of a conversion made in a separate process.

Planning needs torch, transformers or Flax: half a gigabyte and more before the first tensor is
read. The process that writes needs none of them.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

from converters.checkpoint import open_checkpoint
from converters.checkpoint.renamed import Renamed
from converters.checkpoint.source import RemoteSource
from converters.errors import PlanningError
from converters.planning import CheckpointLike, PlannedConversion, planned
from converters.remote.names import ResolvedName, resolve_name
from converters.request import PlanOptions


def planned_apart(checkpoint: CheckpointLike, options: PlanOptions) -> PlannedConversion:
    """Return the plan of `converters.planning.planned`, without the model.

    Args:
        checkpoint: a file or a folder.
        options: the options of the plan, without a module, which would be sent to the process.

    Raises:
        ConversionError: as in `planned`; `PlanningError` if the process died.
    """
    notes: tuple[str, ...] = ()
    if isinstance(checkpoint, str | ResolvedName):
        understood = resolve_name(checkpoint)
        checkpoint, notes = (
            understood.source,
            (understood.description,) if understood.description else (),
        )
    if not isinstance(checkpoint, Path | RemoteSource):
        return planned(checkpoint, options)
    # A remote checkpoint is opened here first, so that the process receives the headers already
    # read.
    stored = open_checkpoint(checkpoint, options.key, as_stored=options.as_stored)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as pool:
        try:
            conversion, names = pool.submit(_planned, checkpoint, options).result()
        except BrokenProcessPool:
            what = f"{checkpoint}: the process that planned its conversion died"
            raise PlanningError(what, "was the memory too small for the model?") from None
    return replace(conversion, checkpoint=Renamed(stored, names), notes=(*notes, *conversion.notes))


def _planned(
    checkpoint: Path | RemoteSource, options: PlanOptions
) -> tuple[PlannedConversion, dict[str, str]]:
    """Return the plan without process-local data, and the names of the keys in it."""
    conversion = planned(checkpoint, options)
    names = {conversion.stored.get(name, name): name for name in conversion.checkpoint.infos}
    return replace(conversion, checkpoint=None, model=None), names  # type: ignore[arg-type]
