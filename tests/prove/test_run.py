from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from migrate.cli import commands
from migrate.prove.errors import NoScriptError, RunTimeoutError
from migrate.prove.recording import records
from migrate.prove.run import Side, joins_over_nccl, run_script
from tests.waiting import LIMIT, until

# Starts a child that outlives it, says both process ids, then waits.
LINGERING = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
with open(sys.argv[1] + '.partial', 'w') as file:
    file.write(f'{os.getpid()} {child.pid}')
os.rename(sys.argv[1] + '.partial', sys.argv[1])
WAIT
"""


def gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has waited for yet has ended too."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def test_the_script_runs_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 7\n")
    path = script(
        tmp_path,
        "import sys, beside\n"
        "print(__name__, sys.argv[1:], beside.value, sys.path[0], flush=True)\n"
        "print('and an error', file=sys.stderr)\n"
        "raise SystemExit(3)\n",
    )
    result = run_script(path, ["--lr", "1"], side="original", replicas=2, output="capture")
    assert result.returncode == 3
    assert result.output.splitlines() == [
        f"__main__ ['--lr', '1'] 7 {tmp_path}",
        "and an error",
    ]
    assert result.seconds > 0


@pytest.mark.parametrize("given", [pytest.param(None, marks=pytest.mark.long), "2"])
def test_both_sides_have_the_same_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    """Sums are added in another order by another number of threads."""
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    path = script(tmp_path, "import torch\nprint('threads', torch.get_num_threads())\n")
    sides: tuple[Side, ...] = ("original", "xla")
    how: dict[str, Any] = {"replicas": 2, "record_dir": tmp_path, "timeout": 100}
    said = [run_script(path, side=side, output="capture", **how).output for side in sides]
    assert [text.splitlines()[-1:] for text in said] == [[f"threads {given or 1}"]] * 2


def test_a_script_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NoScriptError, match="does not exist"):
        run_script(tmp_path / "no.py", side="xla", replicas=2)


@pytest.mark.parametrize(
    ("text", "is_for_gpus"),
    [
        ("import torch.distributed as dist\ndist.init_process_group('nccl')\n", True),
        ("import torch\ntorch.distributed.init_process_group(backend='nccl')\n", True),
        ("import torch_xla\nimport torch\ntorch.distributed.init_process_group('nccl')\n", False),
        ("import torch\ntorch.distributed.init_process_group('gloo')\n", False),
        ("no Python", False),
    ],
)
def test_a_script_that_joins_over_nccl_is_for_gpus(
    tmp_path: Path, text: str, is_for_gpus: bool
) -> None:
    path = script(tmp_path, text)
    assert joins_over_nccl(path) == is_for_gpus
    if is_for_gpus:
        done = CliRunner().invoke(commands, ["run", str(path)])
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert "--rewrite" in done.stderr


def test_a_timeout_ends_all_processes(tmp_path: Path) -> None:
    path = script(tmp_path, LINGERING.replace("WAIT", "time.sleep(600)"))
    for seconds in (2, 20, 200):  # until the script has time enough to begin
        with pytest.raises(RunTimeoutError, match=f"still running after {seconds} s"):
            run_script(path, [str(tmp_path / "pids")], side="original", replicas=1, timeout=seconds)
        if (tmp_path / "pids").exists():
            break
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert [gone(pid) for pid in pids] == [True, True]


def test_children_left_behind_are_ended(tmp_path: Path) -> None:
    path = script(tmp_path, LINGERING.replace("WAIT", ""))
    result = run_script(
        path, [str(tmp_path / "pids")], side="original", replicas=1, output="capture"
    )
    assert result.returncode == 0
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert [gone(pid) for pid in pids] == [True, True]


def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    path = script(tmp_path, LINGERING.replace("WAIT", "time.sleep(600)"))
    # A shell starts background jobs, and so perhaps this test, with Ctrl-C switched off.
    call = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from pathlib import Path; from migrate.prove.run import run_script;"
        f"run_script(Path({str(path)!r}), [{str(tmp_path / 'pids')!r}], side='original', replicas=1)"
    )
    process = subprocess.Popen([sys.executable, "-c", call], stderr=subprocess.PIPE)
    until(lambda: (tmp_path / "pids").exists() or process.poll() is not None, "the processes")
    assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT)
    assert b"KeyboardInterrupt" in errors
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert [gone(pid) for pid in pids] == [True, True]


# `full_graph` makes torch_xla raise if anything reads a value inside the step.
COUNTED = """
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as metrics
model = torch.nn.Linear(4, 2).to('xla')
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch_xla.sync()
xm.wait_device_ops()
before = (metrics.metric_data('ExecuteTime') or (0,))[0]
for _ in range(4):
    with torch_xla.compile(full_graph=True):
        optimizer.zero_grad()
        for _ in range(2):
            model(torch.ones(3, 4).to('xla')).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
xm.wait_device_ops()
print(metrics.metric_data('ExecuteTime')[0] - before)
"""


@pytest.mark.long
def test_recording_runs_no_graph_of_its_own(tmp_path: Path) -> None:
    path = script(tmp_path, COUNTED)
    counts = []
    for folder in (None, tmp_path):
        result = run_script(path, side="xla", replicas=1, record_dir=folder, output="capture")
        assert result.returncode == 0, result.output
        counts.append(int(result.output.splitlines()[-1]))
    assert counts[0] > 0
    assert counts[0] == counts[1]
    (recorded,) = records.read(tmp_path).values()
    assert [len(step.losses) for step in recorded.steps] == [2, 2, 2, 2]
