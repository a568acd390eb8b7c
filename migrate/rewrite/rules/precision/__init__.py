"""Mixed precision: autocast, gradient scalers, apex."""

from migrate.check.manual_work import ManualWork

# What the findings of its rules ask for.
WORK = ManualWork.PRECISION
