"""What ran: the framework, the device, the precision, the versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Facts:
    """What ran: for the head of the report.

    Attributes:
        framework: "torch", "xla", "linen", "nnx", "jax".
        target: as the user named it.
        device: "cpu", "cuda:0 (NVIDIA H200)", "TPU v5 lite".
        dtype: of the parameters.
        precision: of matmuls: "default", "high", "highest", or "" where the device knows only one.
        emulated: whether that precision was emulated on the CPU.
        versions: package → version.
        notes: what else to know, a line each.
        mode: "evaluation mode", as every model runs but for `--train`; "" where it has no modes or an old
            dump does not tell; what was left in training mode says so.
    """

    framework: str
    target: str
    device: str
    dtype: str
    precision: str = ""
    emulated: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    mode: str = ""
