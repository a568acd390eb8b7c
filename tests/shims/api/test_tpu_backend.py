"""The torch_tpu backend as far as it can be tried without a TPU: its names are there."""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.waiting import LIMIT

PROGRAM = """
import torch, torch_tpu
from shims.backends.tpu import TpuBackend
backend = TpuBackend("a test")
for name in ("device_count", "set_device_index", "synchronize"):
    assert callable(getattr(torch.accelerator, name)), name
assert callable(torch.tpu.distributed.set_tpu_launch_env)
assert "default_generators" in dir(torch.tpu)
scaler = backend.grad_scaler({})
assert scaler.state_dict() == torch.amp.GradScaler("cpu").state_dict()
assert scaler.get_scale() == 1.0
for refused in (backend.memory, lambda: backend.autocast(torch.float16, True)):
    try:
        refused()
    except Exception as error:
        print(type(error).__name__)
"""


def test_the_names_that_it_uses_exist() -> None:
    if importlib.util.find_spec("torch_tpu") is None:
        pytest.skip("torch_tpu is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["MemoryUnknownError", "UnsupportedError"]
