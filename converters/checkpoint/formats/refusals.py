"""Refusals shared by several readers, each with a remedy for the owner of the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from converters.checkpoint.inert.records import ForbiddenNameError, PickleError
from converters.checkpoint.reader import COPY_AGAIN
from converters.checkpoint.source import Source
from converters.errors import CheckpointDamagedError, CheckpointHoldsCodeError

SAVE_AGAIN = (
    "do not load it with another program either, unless you trust who made it; with that program save the "
    'weights alone: safetensors.torch.save_model(model, "model.safetensors")'
)


def holds_code(where: str, name: str) -> CheckpointHoldsCodeError:
    """Return the error for a pickle that names a function with an effect."""
    shown = name if name.isprintable() else ascii(name)
    return CheckpointHoldsCodeError(
        f"{where} is a pickle that names {shown[:160]}, which has an effect where it is called: "
        "nothing was executed",
        SAVE_AGAIN,
    )


def damaged_pickle(where: str, reason: str) -> CheckpointDamagedError:
    """Return the error for a pickle that cannot be read to its end."""
    return CheckpointDamagedError(
        f"{where} is truncated or damaged ({reason}): nothing was executed",
        f"{COPY_AGAIN}, or save it again with torch.save",
    )


@contextmanager
def reading(path: Source) -> Iterator[None]:
    """Context that reads a pickle in this file and turns its errors into refusals.

    Raises:
        CheckpointHoldsCodeError: it names code with an effect.
        CheckpointDamagedError: it cannot be read.
    """
    try:
        yield
    except ForbiddenNameError as error:
        raise holds_code(str(path), str(error)) from None
    except PickleError as error:
        raise damaged_pickle(str(path), str(error)) from None
