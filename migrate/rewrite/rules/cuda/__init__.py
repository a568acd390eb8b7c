"""CUDA's own: streams, timers, its memory, pinned memory, fused optimizers."""

from migrate.check.manual_work import ManualWork

# What the findings of its rules ask for.
WORK = ManualWork.CALLS
