"""What the watch counts inside of a script's process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from migrate.fit.lowered.watch import read_values, written_value
from tests.waiting import LIMIT

pytestmark = pytest.mark.xla

# A step that still runs while the next batch is sent to the device.
PROGRAM = """
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from migrate.fit.lowered.watch import graphs_taken

x = torch.ones(1200, 1200).to(torch_xla.device())
for _ in range(30):
    x = x @ x * 1e-3
torch_xla.sync(wait=False)
before = graphs_taken()
xm.wait_device_ops()
print(before, graphs_taken() - before)
x.sum().item()
print(graphs_taken() - before)
"""


@pytest.mark.long
def test_a_graph_counts_when_it_is_taken_and_not_when_it_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout.split() == ["1", "0", "1"], done.stderr


# A loss in the middle of a step; after it, as it is, in a sum over steps, and beside its weights.
READS = """
import torch
import torch_xla
from migrate.fit.lowered.pending import takes_weights

device = torch_xla.device()
net = torch.nn.Linear(4, 1).to(device)
x = torch.ones(2, 4).to(device)
torch_xla.sync()
loss = net(x).square().mean()
print(takes_weights(loss), takes_weights(x.isnan().any()))
loss.backward()
torch_xla.sync()
print(takes_weights(loss), takes_weights(loss.detach() / 3), takes_weights(3.0))
"""


def test_a_read_of_what_weights_have_made_is_a_part_of_the_step() -> None:
    done = subprocess.run(
        [sys.executable, "-c", READS], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout.split() == ["True", "False", "False", "False", "False"], done.stderr


# The same two results, with the garbage collector in between in the second step.
ORDER = """
import gc
import torch
import torch_xla
from migrate.fit.lowered.pending import pending_hash

device = torch_xla.device()
a, b = torch.ones(2, device=device), torch.ones(3, device=device)
torch_xla.sync()
for collected in (False, True):
    first = a + 1
    if collected:
        gc.collect()
    second = b * 2
    print(pending_hash())
    del first, second
"""


def test_a_step_has_the_same_hash_whenever_garbage_is_collected() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORDER], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    first, second = done.stdout.split()
    assert first == second != "None", done.stderr


def test_what_a_read_gave_comes_back_in_a_second_run() -> None:
    kept = torch.tensor([1.5, float("nan")], dtype=torch.bfloat16)
    lines = [
        written_value("a.py:3", "item", 2.0),
        written_value("a.py:3", "item", 3.0),
        written_value("a.py:4", "cpu", kept),
        written_value("a.py:5", "numpy", np.arange(3, dtype=np.int16)),
        written_value("a.py:6", "item", 1j),
        written_value("a.py:7", "cpu", torch.zeros(1_000_000)),
    ]
    assert lines[-2:] == [
        "",
        "",
    ]  # no form in JSON; too large: told as a value that nobody has read
    found = read_values("".join(lines))
    assert found["a.py:3", "item"] == 3.0
    torch.testing.assert_close(found["a.py:4", "cpu"], kept, equal_nan=True)
    array = found["a.py:5", "numpy"]
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.int16
    assert array.tolist() == [0, 1, 2]
    assert len(found) == 3
