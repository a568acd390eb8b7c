"""Advice of the portable style on backends and devices that no rule handles."""

from __future__ import annotations

BACKEND = "'nccl': the backend of the replica's device is shims.backend().group_backend"
DEVICE = "the replica's device is shims.device(), its type shims.device_type()"
