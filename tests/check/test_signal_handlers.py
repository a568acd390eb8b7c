"""Handlers of signals that a launched function sets, through whatever files."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.file import check_file
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.left.codes import code_of
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

LATE = """\
import signal


def stop(number, frame):
    print("stopped")


{outside}if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
"""
UTIL = """\
import faulthandler
import signal
import threading
from signal import SIGTERM, signal as set_handler


def install(handler):
    signal.signal(signal.SIGUSR2, handler)


def install_by_name(handler):
    set_handler(SIGTERM, handler)


class Stopper:
    def __init__(self, handler):
        self.handler = handler

    def start(self):
        signal.signal(signal.SIGALRM, self.handler)
        signal.alarm(5)


async def serve(loop, handler):
    loop.add_signal_handler(signal.SIGINT, handler)


def other(handler):
    signal.alarm(5)
    signal.siginterrupt(signal.SIGUSR1, False)
    faulthandler.register(signal.SIGUSR1)


def careful(handler):
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR2, handler)


def caught(handler):
    try:
        signal.signal(signal.SIGUSR2, handler)
    except ValueError:
        print("no handler")
"""
TRAIN = """\
import torch_xla

import util


def stop(number, frame):
    print("stopped")


def main(index):
    {inside}
    print(index)


if __name__ == "__main__":
    {outside}
    torch_xla.launch(main)
"""


def found(folder: Path, inside: str = "pass", outside: str = "pass") -> list[tuple[int, str]]:
    (folder / "util.py").write_text(UTIL)
    script = folder / "train.py"
    script.write_text(TRAIN.format(inside=inside, outside=outside))
    return [(one.line, one.message) for one in check_file(script, Config()) if one.code == "XLA841"]


@pytest.mark.parametrize(
    ("inside", "where"),
    [
        ("util.install(stop)", "install (util.py)"),
        ("util.install_by_name(stop)", "install_by_name (util.py)"),
        ("util.Stopper(stop).start()", "start (util.py)"),
        ("util.serve(None, stop)", "serve (util.py)"),
        ("import signal; signal.signal(signal.SIGTERM, stop)", "torch_xla.launch runs this"),
    ],
)
def test_a_handler_that_a_replica_sets_is_reported(tmp_path: Path, inside: str, where: str) -> None:
    ((line, message),) = found(tmp_path, inside)
    assert line == 11
    assert where in message


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("util.other(stop)", "pass"),
        ("util.careful(stop)", "pass"),
        ("util.caught(stop)", "pass"),
        ("pass", "util.install(stop)"),
    ],
)
def test_what_works_in_a_thread_or_runs_in_the_main_one_is_right(
    tmp_path: Path, inside: str, outside: str
) -> None:
    assert found(tmp_path, inside, outside) == []


def test_a_folder_whose_program_is_given_a_launch(tmp_path: Path) -> None:
    (tmp_path / "util.py").write_text(UTIL)
    (tmp_path / "train.py").write_text("""\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import util


def stop(number, frame):
    print("stopped")


def main():
    util.install(stop)
    dist.init_process_group("nccl")
    print(DDP(torch.nn.Linear(2, 1).cuda()))


if __name__ == "__main__":
    main()
""")
    done = rewrite_folder(tmp_path)
    notes = {file.name.name: file.findings for file in done.files}
    (note,) = [one for one in notes["train.py"] if one.rule == "XLA841"]
    assert note.line == 13
    assert "install (util.py)" in note.message


def test_a_file_that_is_run_as_a_whole_in_the_thread(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("""\
import runpy
import signal

import torch_xla


def _mp_fn(index):
    runpy.run_path(__file__, run_name="__main__")


def stop(number, frame):
    print("stopped")


if __name__ == "__main__":
    torch_xla.launch(_mp_fn, start_method="fork")
signal.signal(signal.SIGTERM, stop)
""")
    assert [one.line for one in check_file(script, Config()) if one.code == "XLA841"] == [17]


@pytest.mark.parametrize(
    ("outside", "lines"), [("", []), ("signal.signal(signal.SIGTERM, stop)\n", [11])]
)
def test_a_file_that_the_replica_imports_first(
    tmp_path: Path, outside: str, lines: list[int]
) -> None:
    (tmp_path / "late.py").write_text(LATE.format(outside=outside))
    assert [line for line, _ in found(tmp_path, "import late; print(late.stop)")] == lines


def test_one_finding_for_a_handler_in_a_script_that_gets_its_launch() -> None:
    script = """\
import signal

import torch.distributed as dist


def main():
    dist.init_process_group("nccl")
    signal.signal(signal.SIGTERM, print)


if __name__ == "__main__":
    main()
"""
    done = rewrite_source(parse(script.encode(), Path("train.py")))
    found = [code_of(note) for note in done.findings if note.line == 8]
    assert "torch_xla.launch(_mp_fn)" in done.data.decode()
    assert found == ["XLA841"]
