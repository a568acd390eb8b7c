"""The process group and its collectives."""

from migrate.check.manual_work import ManualWork

# What the findings of its rules ask for.
WORK = ManualWork.REPLICAS
