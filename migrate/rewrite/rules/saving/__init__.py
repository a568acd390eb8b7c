"""Saving: what is saved, where, and by which replica."""

from migrate.check.manual_work import ManualWork

# What the findings of its rules ask for.
WORK = ManualWork.REPLICAS
