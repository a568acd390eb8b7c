"""Cost of a new shape on torch_tpu, for the pages of several hazards."""

from __future__ import annotations

NEW_SHAPE = (
    "Each operation compiles a kernel for each new shape (measured: 5 compilations of an "
    "eager step for a short last batch, 2 of a compiled one)."
)
SHAPE_OF_VALUES = (
    "An operation compiles a kernel for each new shape of its inputs, and later operations of "
    "the result do too (measured: 5 compilations of an eager step for a short last batch, 2 "
    "of a compiled one). The read of the number of values waits for the device, as on CUDA."
)
