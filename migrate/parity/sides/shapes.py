"""Names and shapes of the weights in a file."""

from __future__ import annotations

from pathlib import Path

from migrate.parity.ground.errors import ParityError


def shapes_in(weights: Path) -> dict[str, tuple[int, ...]]:
    """Return name → shape for a file of safetensors.

    Raises:
        ParityError: the file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(weights, framework="numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ParityError(f"{weights}: {error}", "check the file") from None
