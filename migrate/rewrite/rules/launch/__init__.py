"""How the replicas are started: spawn, torchrun, a main function, a notebook."""

from migrate.check.work import Work

# What the findings of its rules ask for.
WORK = Work.REPLICAS
