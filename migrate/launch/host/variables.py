"""Environment variables that a framework needs on a host: on a TPU, or in a trial without one."""

from __future__ import annotations

from pathlib import Path

from migrate.launch.host.hosts import SliceHost
from migrate.launch.host.settings import HostSettings
from migrate.launch.host.tpu_slice import slice_variables


def tpu_variables(
    settings: HostSettings, host: SliceHost, cache: Path, port: str
) -> dict[str, str]:
    """Return the variables of a program on a TPU.

    Args:
        settings: the settings of the job.
        host: this host.
        cache: folder of the compilation cache.
        port: port of host 0 for the program's own processes.
    """
    match settings.framework:
        case "jax":
            # Without the first, JAX trains on the CPU of a host whose TPU does not start.
            return {"JAX_PLATFORMS": "tpu,cpu", "JAX_COMPILATION_CACHE_DIR": str(cache)}
        case "torch_tpu":
            name = "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT"
            return {name: str(cache), **slice_variables(settings, host, port)}
    return {"PJRT_DEVICE": "TPU", "XLA_PERSISTENT_CACHE_PATH": str(cache)}


def trial_variables(
    settings: HostSettings, cache: Path, replicas: int, *, torchrun: bool
) -> dict[str, str]:
    """Return the variables that stand in for a TPU on the CPU of this machine.

    Args:
        settings: the settings of the job.
        cache: folder of the compilation cache.
        replicas: simulated devices of this host.
        torchrun: whether torchrun starts the program.

    Raises:
        ShimError: torch_tpu cannot be simulated here with so many replicas.
    """
    from shims import activate, simulate_tpu

    if settings.framework == "jax":
        devices = f"--xla_force_host_platform_device_count={replicas}"
        return {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": devices,
            "JAX_COMPILATION_CACHE_DIR": str(cache),
        }
    if settings.framework == "torch_tpu":
        simulate_tpu.require_ranks(replicas)
        # Its cache holds code for this machine's CPU, and stays out of the bucket.
        return {**activate.environment("simulate-tpu", replicas), "OMP_NUM_THREADS": "1"}
    if torchrun:
        return {"MIGRATE_BACKEND": "cpu", "OMP_NUM_THREADS": "1"}
    # On the CPU, torch_xla cannot store a compiled program.
    return {**activate.environment("simulate", replicas), "MIGRATE_BACKEND": "xla"}
