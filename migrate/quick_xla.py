"""Flags that make XLA compile for the CPU quickly, for programs that are only compared or inspected.

Most of a short run of a small model is LLVM, which optimizes each graph for a program that runs for hours.
Measured on a ViT of 0.1 M parameters, two simulated replicas, 32 steps: 45 s of CPU time instead of 77. Most
of what remains is the emitter of fusions, which goes through MLIR, and the split of each graph into up to 32
modules for LLVM: without both, a training step of two linear layers compiles in a fifth of the time. The
program is the same; where XLA rounds in another order, both forms are equally far from the original.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

FLAGS = "XLA_FLAGS"
_EXCESS = "--xla_allow_excess_precision"
# Values are rounded to 16 bits wherever the program says so, not only where a fusion ends.
AS_WRITTEN = f"{_EXCESS}=false"
_LEVEL = "--xla_backend_optimization_level"
_SPLIT = "--xla_cpu_parallel_codegen_split_count"
_EMITTERS = "--xla_cpu_use_fusion_emitters"
# Every XLA of a process reads the flags, and ends the process at one that it does not know. torch_xla 2.9 and
# these versions of jaxlib know the flag of the emitters; jaxlib 0.12 and the plugin of simulated TPUs do not;
# TensorFlow's XLA was not tried.
_WITH_EMITTERS = ("0.10.", "0.11.")
_WITHOUT_EMITTERS = ("tensorflow", "tensorflow-cpu", "torch_tpu")


def compiling_quickly(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make XLA compile quickly; empty if the user has set a level.

    Args:
        environment: of the program, which this interpreter runs.
    """
    flags = environment.get(FLAGS, "")
    if _LEVEL in flags:
        return {}
    ours = [f"{_LEVEL}=0", f"{_SPLIT}=1"]
    if _emitters_can_be_off():
        ours.append(f"{_EMITTERS}=false")
    more = [flag for flag in ours if flag.partition("=")[0] not in flags]
    return {FLAGS: " ".join([flags, *more]).strip()}


def rounding_as_written(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make XLA round to 16 bits as written; empty if the user has set the flag.

    Args:
        environment: of the program.
    """
    flags = environment.get(FLAGS, "")
    return {} if _EXCESS in flags else {FLAGS: f"{flags} {AS_WRITTEN}".strip()}


@cache
def _emitters_can_be_off() -> bool:
    """Whether each XLA that is installed here knows the flag of the fusion emitters."""
    if any(_version(name) for name in _WITHOUT_EMITTERS):
        return False
    return _version("jaxlib", "0.10.").startswith(_WITH_EMITTERS) and _version(
        "torch_xla", "2.9."
    ).startswith("2.9.")


def _version(package: str, absent: str = "") -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return absent
