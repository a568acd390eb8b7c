"""Which replica this is, and how many there are."""

from migrate.check.work import Work

# What the findings of its rules ask for.
WORK = Work.REPLICAS
