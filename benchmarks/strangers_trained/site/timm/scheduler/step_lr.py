"""Steps; no project here takes them."""

from timm.scheduler.scheduler import Scheduler


class StepLRScheduler(Scheduler):
    """Named by an import only."""
