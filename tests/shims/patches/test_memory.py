"""Memory figures beside a TPU: the host's are no answer, and the advice fits the loaded library."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import LIMIT

PROGRAM = """
import sys, types
from pathlib import Path
from shims.patches import memory
memory.tpu_device_files = lambda: [Path("/dev/accel0")]
sys.modules[{library!r}] = types.ModuleType({library!r})
try:
    memory.allocated()
except memory.DeviceNotAnsweredError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("library", "advice"),
    [
        ("torch_xla", "torch_xla.core.xla_model.get_memory_info() reports the TPU's"),
        ("torch_tpu", "torch.accelerator.get_memory_info() reports the TPU's"),
    ],
)
def test_the_advice_is_a_function_of_the_library_that_is_loaded(library: str, advice: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(library=library)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    assert "the host's is not the TPU's" in done.stdout
    assert advice in done.stdout
