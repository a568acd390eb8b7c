"""Models and what wraps them: DDP, FSDP, compilation, shared weights."""

from migrate.check.manual_work import ManualWork

# What the findings of its rules ask for.
WORK = ManualWork.CALLS
