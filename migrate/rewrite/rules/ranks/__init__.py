"""Rules for the rank of a replica and the number of replicas."""

from migrate.check.manual_work import ManualWork

# What the findings of its rules ask for.
WORK = ManualWork.REPLICAS
