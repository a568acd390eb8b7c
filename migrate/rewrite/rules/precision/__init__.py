"""Mixed precision: autocast, gradient scalers, apex."""

from migrate.check.work import Work

# What the findings of its rules ask for.
WORK = Work.PRECISION
