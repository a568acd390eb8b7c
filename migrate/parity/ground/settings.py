"""Settings of a run of a side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["default", "high", "highest"]
PRECISIONS: tuple[Precision, ...] = ("default", "high", "highest")


@dataclass(frozen=True)
class SideSettings:
    """Settings of a run of a model.

    Attributes:
        dtype: dtype of parameters and floating inputs: "float32", "bfloat16", or "float64" (the truth;
            always on the CPU).
        precision: precision of matmuls and convolutions of float32: one bf16 pass, three, or six / true
            float32 (properties of the TPU: `jax_default_matmul_precision`). On a CPU the first two are
            emulated (`migrate.parity.emulate`).
        excess_precision: `xla_allow_excess_precision`.
        device: "" is the side's default: the CPU for torch, XLA's device for torch_xla, JAX's default device;
            else "cpu" or "cuda".
        compiled: whether to use torch.compile, or jax.jit. JAX sides are jitted unless they capture layers.
        batch: rows that pass through the model at a time; None: all rows of an input.
        transposed: arguments that torch has channels first and this side channels last.
        wide: whether to use float64 even where a JAX model asks for float32 (torch's truth always does).
        seed: random seed of initial weights (dropout is always off).
        moved: seed by which each weight and floating input of a torch model moves to one of its two
            neighbors in the dtype, zeros excepted; 0: they stay.
    """

    dtype: str = "float32"
    precision: Precision = "highest"
    excess_precision: bool = True
    device: str = ""
    compiled: bool = False
    batch: int | None = None
    transposed: tuple[str, ...] = ()
    wide: bool = False
    seed: int = 0
    moved: int = 0


TRUTH = SideSettings(dtype="float64", device="cpu")
