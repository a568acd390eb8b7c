"""Seeds and the states of random generators."""

from migrate.check.work import Work

# What the findings of its rules ask for.
WORK = Work.CALLS
