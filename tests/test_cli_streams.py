"""Commands whose stdout or stderr nobody reads any more, as in `migrate … | head`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

MIGRATE = Path(sys.executable).with_name("migrate")
CUDA = "import torch\n\nx = torch.zeros(3).cuda()\n"
ENDED = 128 + signal.SIGPIPE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(CUDA)
    return tmp_path


def unread(folder: Path, *words: str, stream: str = "stdout") -> subprocess.CompletedProcess[str]:
    """Run a command one of whose streams is a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {stream: writing}
    try:
        return subprocess.run([MIGRATE, *words], cwd=folder, text=True, check=False, **streams)
    finally:
        os.close(writing)


@pytest.mark.parametrize(
    "words",
    [
        "rewrite train.py",
        "rewrite train.py --diff",
        "rewrite train.py --json",
        "rewrite . --check",
        "check train.py",
        "check train.py --format sarif",
        "check --explain list",
        "--help",
        "--version",
        "run --help",
    ],
)
@pytest.mark.long_cases(
    "rewrite train.py",
    "rewrite train.py --json",
    "check train.py --format sarif",
    "check --explain list",
)
def test_a_command_ends_quietly(folder: Path, words: str) -> None:
    (folder / "train.py").write_text(f"{CUDA}print(torch.cuda.device_count())\n")
    done = unread(folder, *words.split())
    assert done.returncode == ENDED
    lines = [line for line in done.stderr.splitlines() if not line.startswith("…")]
    assert lines == []


@pytest.mark.long
def test_a_command_with_much_output_ends_after_the_first_line(folder: Path) -> None:
    lines = "".join(f"x{number} = torch.zeros(3).cuda()\n" for number in range(3000))
    (folder / "train.py").write_text(f"import torch\n\n{lines}")
    with subprocess.Popen(
        [MIGRATE, "rewrite", "train.py", "--diff"],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == "--- train.py\n"
        running.stdout.close()
        assert running.stderr.read() == ""
    assert running.returncode == ENDED


@pytest.mark.parametrize("words", ["rewrite missing.py", "rewrite train.py --frob", "check"])
def test_a_message_that_nobody_reads(folder: Path, words: str) -> None:
    done = unread(folder, *words.split(), stream="stderr")
    assert (done.returncode, done.stdout) == (ENDED, "")


@pytest.mark.parametrize("output", ["-o out", ""])
@pytest.mark.long_cases("")
def test_nothing_half_written_stays(folder: Path, output: str) -> None:
    script = folder / "train.py"
    before = set(folder.iterdir())
    if output:
        project = folder / "project"
        project.mkdir()
        script = script.rename(project / "train.py")
        done = unread(folder, "rewrite", "project", "-o", "out")
        written = folder / "out" / "train.py"
        assert set(folder.iterdir()) == {project, folder / "out"}
    else:
        done = unread(folder, "rewrite", "train.py")
        written = folder / "train_xla.py"
        assert set(folder.iterdir()) == before | {written}
    assert done.returncode == ENDED
    assert '.to("xla")' in written.read_text()
    assert script.read_text() == CUDA


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.long_cases("2>&-", "<&- >&- 2>&-")
def test_streams_that_the_shell_has_closed(folder: Path, closed: str) -> None:
    """A file that is opened first must not become stdout."""
    done = subprocess.run(
        ["sh", "-c", f"'{MIGRATE}' rewrite train.py -o out.py {closed}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    written = (folder / "out.py").read_text()
    assert written.startswith("import torch\nimport torch_xla\n")
    assert written.endswith('.to("xla")\n')
