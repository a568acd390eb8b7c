"""Facts about a run: framework, device, precision, versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run, for the head of the report.

    Attributes:
        framework: "torch", "xla", "tpu", "linen", "nnx", "jax".
        target: the target as the user named it.
        device: "cpu", "cuda:0 (NVIDIA H200)", "TPU v5 lite".
        dtype: dtype of the parameters.
        precision: precision of matmuls: "default", "high", "highest", or "" if the device has only one.
        emulated: whether that precision was emulated on the CPU.
        versions: package → version.
        notes: further notes, one a line.
        mode: "evaluation mode", as every model runs but for `--train`, with the layers that stayed in
            training mode; "" if the model has no modes or an old dump does not record them.
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
