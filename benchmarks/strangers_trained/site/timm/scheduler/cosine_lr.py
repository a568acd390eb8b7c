"""A cosine."""

from __future__ import annotations

import math
from typing import Any

from timm.scheduler.scheduler import Scheduler


class CosineLRScheduler(Scheduler):
    """Half of a cosine from the first value to `lr_min`, after a linear warm-up."""

    def __init__(
        self,
        optimizer: Any,
        t_initial: int,
        lr_min: float = 0.0,
        warmup_t: int = 0,
        warmup_lr_init: float = 0.0,
        **ignored: Any,
    ) -> None:
        """In `t_initial` updates."""
        super().__init__(optimizer)
        self.t_initial, self.lr_min, self.warmup_t, self.warmup_lr_init = (
            t_initial,
            lr_min,
            warmup_t,
            warmup_lr_init,
        )
        if warmup_t:
            self.update_groups(warmup_lr_init)

    def get_update_values(self, num_updates: int) -> list[float]:
        """Return the values."""
        if num_updates < self.warmup_t:
            share = num_updates / self.warmup_t
            return [
                self.warmup_lr_init + share * (v - self.warmup_lr_init) for v in self.base_values
            ]
        share = min(1.0, num_updates / self.t_initial)
        fallen = 0.5 * (1 + math.cos(math.pi * share))
        return [self.lr_min + (value - self.lr_min) * fallen for value in self.base_values]
