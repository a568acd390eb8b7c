"""Ranks that wait for each other for ever are noticed, and those that work are left alone."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from migrate.prove.errors import HangError
from migrate.prove.run import run_script
from migrate.prove.waiting import SECONDS, stack_of
from tests.waiting import LIMIT

PACKAGES = sysconfig.get_path("purelib")
DUMP = f"""\
Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "{PACKAGES}/torch/distributed/distributed_c10d.py", line 3000 in all_gather
  File "{PACKAGES}/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "{PACKAGES}/torch/nn/modules/batchnorm.py", line 800 in forward
  File "{PACKAGES}/torch/nn/modules/module.py", line 1775 in _call_impl
  File "/home/user/networks.py", line 27 in forward
  File "{PACKAGES}/torch/nn/modules/module.py", line 1775 in _call_impl
  File "/home/user/train.py", line 41 in worker
  File "/home/user/train.py", line 90 in <module>
"""


def test_a_stack_in_words() -> None:
    stack = stack_of(DUMP)
    assert stack.collective == "all_gather"
    assert str(stack) == "in forward, all_gather (networks.py:27, called at train.py:41)"


def test_the_backward_pass_of_ddp_has_no_frame_of_its_own() -> None:
    stack = stack_of(
        "Current thread 0x01 (most recent call first):\n"
        f'  File "{PACKAGES}/torch/autograd/graph.py", line 829 in _engine_run_backward\n'
        f'  File "{PACKAGES}/torch/_tensor.py", line 625 in backward\n'
        '  File "/home/user/train.py", line 41 in worker\n'
    )
    assert str(stack) == "in backward, the reduction of gradients (train.py:41)"


def test_a_stack_outside_of_a_collective() -> None:
    stack = stack_of(
        'Current thread 0x01 (most recent call first):\n  File "/home/user/a.py", line 3 in f\n'
    )
    assert stack.collective == ""
    assert str(stack) == "outside of a collective (a.py:3)"
    assert str(stack_of("")) == "outside of a collective"


CROSSED = """\
import os
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
value = torch.ones(1).cuda()
other = 1 - dist.get_rank()
if other:
    dist.recv(value, other)  # of rank 0
else:
    dist.barrier()  # of rank 1
"""
SPAWNED = """\
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank, size):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29517", rank=rank, world_size=size)
    value = torch.ones(1).cuda()
    dist.recv(value, 1 - rank)  # of both


if __name__ == "__main__":
    mp.spawn(worker, args=(2,), nprocs=2)
"""
BUSY = """\
import time
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
began = time.process_time()
while dist.get_rank() == 1 and time.process_time() - began < 4:
    pass
value = torch.ones(1).cuda()
dist.all_reduce(value)
"""

FAILING = """\
import atexit
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
atexit.register(dist.barrier)  # as torch_tpu does
if dist.get_rank() == 0:
    raise ValueError("no such file")
dist.recv(torch.ones(1).cuda(), 0)
"""


def line(text: str, mark: str) -> int:
    return next(number for number, one in enumerate(text.splitlines(), 1) if mark in one)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECONDS, "2")


def test_ranks_of_the_original_that_wait_are_named_with_their_lines(
    tmp_path: Path, soon: None
) -> None:
    script = tmp_path / "train.py"
    script.write_text(CROSSED)
    with pytest.raises(HangError) as raised:
        run_script(script, side="original", replicas=2, output="capture", timeout=LIMIT)
    first, second = line(CROSSED, "of rank 0"), line(CROSSED, "of rank 1")
    assert f"rank 0 waits in recv (train.py:{first})" in raised.value.what
    assert f"rank 1 in barrier (train.py:{second})" in raised.value.what


def test_ranks_that_the_script_starts_itself(tmp_path: Path, soon: None) -> None:
    script = tmp_path / "train.py"
    script.write_text(SPAWNED)
    with pytest.raises(HangError) as raised:
        run_script(script, side="original", replicas=2, output="capture", timeout=LIMIT)
    at = line(SPAWNED, "of both")
    assert (
        f"rank 0 waits in recv (train.py:{at}), rank 1 in recv (train.py:{at})" in raised.value.what
    )


def test_the_error_of_a_rank_that_waits_at_its_end_is_shown(tmp_path: Path, soon: None) -> None:
    script = tmp_path / "train.py"
    script.write_text(FAILING)
    with pytest.raises(HangError) as raised:
        run_script(script, side="original", replicas=2, output="capture", timeout=LIMIT)
    assert "ValueError: no such file" in raised.value.output


@pytest.mark.long
def test_a_rank_that_works_while_another_waits_is_no_hang(tmp_path: Path, soon: None) -> None:
    script = tmp_path / "train.py"
    script.write_text(BUSY)
    done = run_script(script, side="original", replicas=2, output="capture", timeout=LIMIT)
    assert done.returncode == 0, done.output
    assert done.ranks == 2


ASLEEP = """\
import threading
import torch_xla
import torch_xla.core.xla_model as xm


def worker(index):
    if index:
        threading.Event().wait()  # of rank 1
    xm.rendezvous("end")  # of rank 0


if __name__ == "__main__":
    torch_xla.launch(worker)
"""


@pytest.mark.xla
@pytest.mark.long
def test_replicas_of_the_rewrite(tmp_path: Path, soon: None) -> None:
    script = tmp_path / "train.py"
    script.write_text(ASLEEP)
    with pytest.raises(HangError) as raised:
        run_script(script, side="xla", replicas=2, output="capture", timeout=LIMIT)
    assert f"(train.py:{line(ASLEEP, 'of rank 0')})" in raised.value.what
    assert f"rank 1 in wait (train.py:{line(ASLEEP, 'of rank 1')})" in raised.value.what
