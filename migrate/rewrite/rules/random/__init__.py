"""Seeds and the states of random generators."""

from migrate.check.manual_work import ManualWork

# What the findings of its rules ask for.
WORK = ManualWork.CALLS
