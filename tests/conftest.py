"""No test looks for a TPU, and none depends on what the machine's environment says of one."""

from __future__ import annotations

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PJRT_DEVICE"] = "CPU"
os.environ.pop("XLA_USE_BF16", None)
os.environ.pop("XLA_DOWNCAST_BF16", None)
