"""Installation of the CUDA answers on a simulated TPU of torch_tpu, right after torch has been imported."""

from __future__ import annotations

from shims import activate, patches, simulate_tpu


def install() -> None:
    """Simulate a TPU in this process, and answer for CUDA on it."""
    count = activate.replicas()
    simulate_tpu.install(count)
    patches.install("tpu", count)
