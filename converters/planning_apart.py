"""The plan of a conversion, made in a process that ends.

To plan takes torch, transformers or Flax: half a gigabyte and more before the first tensor is read. The
process that writes needs none of them.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

from converters.checkpoint import open_checkpoint
from converters.checkpoint.source import RemoteSource
from converters.checkpoint.renamed import Renamed
from converters.errors import PlanningError
from converters.planning import CheckpointLike, Planned, planned
from converters.remote.names import ResolvedName, resolve_name
from converters.request import PlanOptions


def planned_apart(checkpoint: CheckpointLike, options: PlanOptions) -> Planned:
    """The plan as `converters.planning.planned` makes it, without the model.

    Args:
        checkpoint: a file or a folder.
        options: what decides; no module among them, which would be sent to the process.

    Raises:
        ConversionError: as `planned`; and `PlanningError` where the process died.
    """
    said: tuple[str, ...] = ()
    if isinstance(checkpoint, str | ResolvedName):
        understood = resolve_name(checkpoint)
        checkpoint, said = understood.source, (understood.description,) if understood.description else ()
    if not isinstance(checkpoint, Path | RemoteSource):
        return planned(checkpoint, options)
    # What is far away is opened here first: the process gets what was read of its headers.
    stored = open_checkpoint(checkpoint, options.key, as_stored=options.as_stored)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as pool:
        try:
            made, names = pool.submit(_planned, checkpoint, options).result()
        except BrokenProcessPool:
            what = f"{checkpoint}: the process that planned its conversion died"
            raise PlanningError(what, "was the memory too small for the model?") from None
    return replace(made, checkpoint=Renamed(stored, names), notes=(*said, *made.notes))


def _planned(checkpoint: Path | RemoteSource, options: PlanOptions) -> tuple[Planned, dict[str, str]]:
    """The plan without what only lives in its process, and the names of the keys in it."""
    made = planned(checkpoint, options)
    names = {made.stored.get(name, name): name for name in made.checkpoint.infos}
    return replace(made, checkpoint=None, model=None), names  # type: ignore[arg-type]
