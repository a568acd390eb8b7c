"""The torch_tpu backend as on a host with TPUs: a module stands in for torch_tpu 0.2, with its answers.

With torch_tpu itself, on a simulated TPU, `test_behaviors.py` and `tests/shims/tpu` run it.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.waiting import LIMIT

STAND_IN = """
import sys, types
from pathlib import Path
import torch
from shims import tpu
from shims._simulated_tpu import versions

tpu.tpu_device_files = lambda: [Path("/dev/accel0")]
versions.problems = lambda: []

torch.utils.rename_privateuse1_backend("tpu")
sys.modules["torch_tpu"] = types.ModuleType("torch_tpu")
started = []

def set_tpu_launch_env(nproc_per_node):
    if nproc_per_node == 3:
        raise RuntimeError("No TPU topology found\\nfor 3 ranks")
    started.append(nproc_per_node)

generators = [torch.Generator()]
torch.tpu = types.SimpleNamespace(
    distributed=types.SimpleNamespace(set_tpu_launch_env=set_tpu_launch_env),
    default_generators=generators,
)
torch.accelerator.get_memory_info = lambda: (60, 100)
torch.accelerator.memory_allocated = lambda: 30
torch.accelerator.max_memory_allocated = lambda: 40
torch.accelerator.device_count = lambda: 8

from shims.api_errors import LaunchError, UnsupportedError
from shims.backends.base import MemoryUse
from shims.backends.tpu import TpuBackend

def refused(error, call):
    try:
        call()
    except error as told:
        return str(told)
    raise AssertionError("not refused")

backend = TpuBackend("a test")
"""

BEHAVIOR = """
import os
from torch import nn

os.environ.update(LOCAL_RANK="1", RANK="1", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
# The chip of every rank is its number 0.
assert backend.device() == torch.device("tpu:0")
state = backend.device_rng_state()
drawn = torch.rand(2, generator=generators[0])
backend.set_device_rng_state(state)
assert torch.equal(drawn, torch.rand(2, generator=generators[0]))
assert backend.memory() == MemoryUse(30, 40, 100)
assert backend.autocast_dtype(torch.float16) == torch.bfloat16
refused(UnsupportedError, lambda: backend.autocast(torch.float64, True, None))
scaler = backend.grad_scaler({})
assert scaler.state_dict() == torch.amp.GradScaler("cpu").state_dict()

class Elsewhere(TpuBackend):
    def device(self):
        return torch.device("meta")  # a move there makes new parameters, as on a TPU

tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
tied[1].weight = tied[0].weight
moved = Elsewhere("a test").to_device(tied)
assert moved[1].weight is moved[0].weight
assert moved[0].weight.device.type == "meta"

# Started by torchrun alone nobody has said how the chips are connected.
for call in (lambda: backend.launch(print, (), None), lambda: backend.init_distributed(None)):
    said = refused(LaunchError, call)
    assert "python -m torch.tpu.distributed" in said and "TORCH_TPU_TOPOLOGY" in said, said
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
backend.launch(lambda rank: started.append("ran"), (), None)
assert started == [1, "ran"], started
os.environ.update(RANK="1", WORLD_SIZE="2", TORCH_TPU_TOPOLOGY="1,2,1")
os.environ.update(TORCH_TPU_SLICEBUILDER_ADDRESSES="localhost:1,localhost:2")
backend.launch(lambda rank: started.append(rank), (), None)
assert started == [1, "ran", 1], started
for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
    del os.environ[name]
said = refused(LaunchError, lambda: backend.launch(print, (), 3))
assert "cannot start 3 ranks here: No TPU topology found" in said and "1, 4 or 8" in said, said
assert "\\n" not in said
print("right")
"""


def ran(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_it_does_where_torch_tpu_says_what_it_says() -> None:
    assert ran(STAND_IN + BEHAVIOR) == "right\n"
