"""The process group and its collectives."""

from migrate.check.work import Work

# What the findings of its rules ask for.
WORK = Work.REPLICAS
