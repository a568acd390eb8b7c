"""Saves in a thread beside the replica's own: they read the weights while the next step is traced.

Shown on two simulated replicas: where the thread saves between the update and the end of a step, replica 0
reads the result of the gradients' all_reduce by xm.save, and replica 1 syncs (`ReplicasDisagreeError`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
import asyncio
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import torch
import torch.distributed as dist

pool = ThreadPoolExecutor(1)
others = ProcessPoolExecutor(1)


def save(state, path):
    torch.save(state, path)


def main(model):
    dist.init_process_group("nccl")
    model = model.cuda()
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    START
    dist.barrier()
"""
WRITER = """
class Writer(threading.Thread):
    def __init__(self, state):
        super().__init__()
        self.state = state

    def run(self):
        write(self.state)


def write(state):
    torch.save(state, "other.pt")
"""
STARTS = [
    "threading.Thread(target=save, args=(model.state_dict(), 'a.pt')).start()",
    "threading.Thread(None, save, args=(model.state_dict(), 'a.pt')).start()",
    "threading.Timer(1.0, save, args=(model.state_dict(), 'a.pt')).start()",
    "threading.Thread(target=lambda: save(model.state_dict(), 'a.pt')).start()",
    "pool.submit(save, model.state_dict(), 'a.pt')",
    "asyncio.get_event_loop().run_in_executor(None, save, model.state_dict(), 'a.pt')",
    "asyncio.to_thread(save, model.state_dict(), 'a.pt')",
    "Writer(model.state_dict()).start()",
]


def reports(start: str) -> tuple[str, list[str]]:
    text = SCRIPT.replace("START", start) + (WRITER if "Writer" in start else "")
    done = rewrite_source(parse(text.encode(), Path("script.py")))
    return done.data.decode(), [
        note.message for note in done.findings if "runs in a thread" in note.message
    ]


@pytest.mark.parametrize("start", STARTS)
def test_a_save_in_a_thread_is_reported(start: str) -> None:
    data, messages = reports(start)
    assert len(messages) == 1
    assert "to the CPU first" in messages[0]
    assert data.count("torch.save") >= 1


@pytest.mark.parametrize(
    "start",
    [
        # The values were moved in the replica's own thread: the save reads no device.
        "threading.Thread(target=save, args=(state, 'a.pt')).start()",
        "pool.submit(save, state, 'a.pt')",
        "threading.Thread(target=save, args=({'w': model.weight.cpu(), 'step': 3}, 'a.pt')).start()",
    ],
)
def test_what_is_on_the_cpu_may_be_saved_in_a_thread(start: str) -> None:
    data, messages = reports(start)
    assert messages == []
    assert "    torch.save(state, path)" in data  # `xm.save` would do no more


@pytest.mark.parametrize(
    "start",
    [
        "save(model.state_dict(), 'a.pt')",
        # A process of its own: it gets copies.
        "others.submit(save, state, 'a.pt')",
    ],
)
def test_a_save_in_no_thread(start: str) -> None:
    data, messages = reports(start)
    assert messages == []
    assert "xm.save(state, path" in data


def test_one_thread_with_the_device_is_enough() -> None:
    _, messages = reports(
        "pool.submit(save, state, 'a.pt')\n    pool.submit(save, model.state_dict(), 'b.pt')"
    )
    assert len(messages) == 1


def test_a_call_besides_the_thread_is_no_proof() -> None:
    _, messages = reports("pool.submit(save, state, 'a.pt')\n    save(model.state_dict(), 'b.pt')")
    assert len(messages) == 1


def test_a_script_of_one_process_is_left_alone(tmp_path: Path) -> None:
    """No collective is in its graph: the thread may only run a part of it early."""
    text = SCRIPT.replace("START", STARTS[0]).replace('    dist.init_process_group("nccl")\n', "")
    text = text.replace("    dist.barrier()\n", "").replace(
        "import torch.distributed as dist\n", ""
    )
    script = tmp_path / "script.py"
    script.write_text(text)
    assert check_paths([script], Config(select=("XLA301",))).findings == ()
