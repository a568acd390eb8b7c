"""No test looks for a TPU, and none depends on what the machine's environment says."""

from __future__ import annotations

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PJRT_DEVICE"] = "CPU"
os.environ.pop("XLA_USE_BF16", None)
os.environ.pop("XLA_DOWNCAST_BF16", None)
# Unbuffered, print() writes its arguments one by one, and those of two ranks mix in one line.
os.environ.pop("PYTHONUNBUFFERED", None)
