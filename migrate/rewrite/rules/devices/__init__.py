"""The device: its name, its kind, whether there is one, and what is loaded onto it."""

from migrate.check.manual_work import ManualWork

# What the findings of its rules ask for.
WORK = ManualWork.CALLS
