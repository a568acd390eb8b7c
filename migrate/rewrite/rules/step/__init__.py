"""The step: which statements of a loop go into one, and what waits until after it."""

from migrate.check.manual_work import ManualWork

# What the findings of its rules ask for.
WORK = ManualWork.STEP
