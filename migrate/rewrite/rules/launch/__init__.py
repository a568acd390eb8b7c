"""Rules for the start of the replicas: spawn, torchrun, a main function, a notebook."""

from migrate.check.manual_work import ManualWork

# What the findings of its rules ask for.
WORK = ManualWork.REPLICAS
