"""What schedules have in common, with timm's interface."""

from __future__ import annotations

from typing import Any


class Scheduler:
    """Sets one field of each parameter group, by epochs or by updates."""

    def __init__(self, optimizer: Any, param_group_field: str = "lr", **ignored: Any) -> None:
        """Remember what each group began with."""
        self.optimizer, self.field = optimizer, param_group_field
        for group in optimizer.param_groups:
            group.setdefault(f"initial_{param_group_field}", group[param_group_field])
        self.base_values = [
            group[f"initial_{param_group_field}"] for group in optimizer.param_groups
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return all but the optimizer."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def step_update(self, num_updates: int) -> None:
        """Set what the schedule says for this update."""
        values = self.get_update_values(num_updates)
        if values is not None:
            self.update_groups(values)

    def get_update_values(self, num_updates: int) -> list[float] | None:
        """Return the values, or None where nothing changes."""
        return None

    def update_groups(self, values: Any) -> None:
        """Set the values of all groups."""
        each = values if isinstance(values, list | tuple) else [values] * len(self.base_values)
        for group, value in zip(self.optimizer.param_groups, each, strict=True):
            group[self.field] = value
