"""What kind of work a finding asks for: changing a call is minutes, replacing a CUDA kernel is weeks."""

from __future__ import annotations

from enum import StrEnum


class Work(StrEnum):
    """A kind of work; `migrate assess` says how many hours it takes each to be."""

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
        """What has to be done."""
        return _WORDS[self]


_WORDS = {
    Work.FRAMEWORK: "take out a framework that has no TPU backend",
    Work.KERNELS: "write CUDA kernels anew, in torch operations or Pallas",
    Work.LIBRARY: "replace a library that needs CUDA",
    Work.SWITCH: "turn on a framework's own way to a TPU",
    Work.SHARDING: "cut weights among the replicas in XLA's own way, and their checkpoints",
    Work.SHAPES: "give tensors fixed sizes",
    Work.STEP: "arrange the training step",
    Work.REPLICAS: "let the replicas start, and do the same",
    Work.PRECISION: "choose dtypes that a TPU computes in",
    Work.MEMORY: "do without addresses, views and shared memory",
    Work.CALLS: "change a call",
}
