"""The refusals that several readers have in common, each with how the owner of the file goes on."""

from __future__ import annotations

from converters.checkpoint.reader import COPY_AGAIN
from converters.errors import CheckpointDamagedError, CheckpointHoldsCodeError

SAVE_AGAIN = (
    "if you trust it, load it with the program that wrote it and save the weights alone: "
    'safetensors.torch.save_model(model, "model.safetensors")'
)


def holds_code(where: str, name: str) -> CheckpointHoldsCodeError:
    """For a pickle that names a class or function."""
    shown = name if name.isprintable() else ascii(name)
    return CheckpointHoldsCodeError(
        f"{where} is a pickle that names {shown[:160]}, which is not tensor data: nothing was executed",
        SAVE_AGAIN,
    )


def damaged_pickle(where: str, reason: str) -> CheckpointDamagedError:
    """For a pickle that cannot be read to its end."""
    return CheckpointDamagedError(
        f"{where} is truncated or damaged ({reason}): nothing was executed",
        f"{COPY_AGAIN}, or save it again with torch.save",
    )
