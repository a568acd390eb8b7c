"""Environment variables of a simulated replica, set before it imports torch."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from pathlib import Path

from shims._simulated_tpu import versions

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
LIBRARY = "TPU_LIBRARY_PATH"
CACHE = "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT"
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def variables() -> dict[str, str]:
    """Return the environment variables that a simulated replica needs before it imports torch.

    Raises:
        NotSimulatedError: a package is missing or has another version.
    """
    versions.require()
    return {
        # torch must not load torch_tpu by itself: torch_tpu would choose libtpu.
        AUTOLOAD: "0",
        LIBRARY: str(versions.plugin_file()),
        CACHE: os.environ.get(CACHE) or str(_cache_folder()),
        # XLA writes dozens of lines for each process.
        _LOG_LEVEL: os.environ.get(_LOG_LEVEL) or "2",
    }


def _cache_folder() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # Compiled code fits one compiler and one kind of CPU.
    names = [f"{name}={versions.installed(name)}" for name in versions.TESTED]
    text = "\n".join([*names, platform.machine(), _cpu_flags()])
    return root / "tpu-migrate" / "torch_tpu" / hashlib.sha256(text.encode()).hexdigest()[:16]


def _cpu_flags() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return line
    return ""
