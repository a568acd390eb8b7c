"""Calls that newer versions spell differently: old torch_xla, torch.jit."""

from migrate.check.manual_work import ManualWork

# What the findings of its rules ask for.
WORK = ManualWork.CALLS
