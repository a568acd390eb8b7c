"""Kinds of manual work for findings: changing a call takes minutes, replacing a CUDA kernel takes weeks."""

from __future__ import annotations

from enum import StrEnum


class ManualWork(StrEnum):
    """A kind of manual work. `migrate assess` assumes hours for each kind."""

    FRAMEWORK = "framework"
    KERNELS = "kernels"
    LIBRARY = "library"
    SWITCH = "switch"
    SHARDING = "sharding"
    SHAPES = "shapes"
    STEP = "step"
    REPLICAS = "replicas"
    PRECISION = "precision"
    MEMORY = "memory"
    CALLS = "calls"

    @property
    def words(self) -> str:
        """Description of the work."""
        return _WORDS[self]


_WORDS = {
    ManualWork.FRAMEWORK: "take out a framework that has no TPU backend",
    ManualWork.KERNELS: "write CUDA kernels anew, in torch operations or Pallas",
    ManualWork.LIBRARY: "replace a library that needs CUDA",
    ManualWork.SWITCH: "turn on a framework's own way to a TPU",
    ManualWork.SHARDING: "cut weights among the replicas in XLA's own way, and their checkpoints",
    ManualWork.SHAPES: "give tensors fixed sizes",
    ManualWork.STEP: "arrange the training step",
    ManualWork.REPLICAS: "let the replicas start, and do the same",
    ManualWork.PRECISION: "choose dtypes that a TPU computes in",
    ManualWork.MEMORY: "do without addresses, views and shared memory",
    ManualWork.CALLS: "change a call",
}
