"""Plan of a conversion from a model's module tree and a checkpoint's keys; every key has one outcome."""

from converters.mapping.module_tree import Outcome, Slot, read_slots
from converters.mapping.plan import Plan, Row, make_plan

__all__ = ["Outcome", "Plan", "Row", "Slot", "make_plan", "read_slots"]
