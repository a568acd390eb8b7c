"""Written programs on several devices and hosts, in processes of their own on simulated devices."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.train.toy import write_toy
from tests.waiting import LIMIT

pytestmark = pytest.mark.long

DEVICES = "--xla_force_host_platform_device_count="
# Reports every bit of the losses; KILL is the update before which this process gets the signal.
DRIVER = """
import os, signal, sys
sys.path.insert(0, {folder!r})
import train, data
def report(number, losses, rate):
    if train.jax.process_index() == 0:
        print("loss", number, *(float(x).hex() for x in losses), flush=True)
def hook(number):
    if str(number) == os.environ.get("KILL"):
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
train.report, data.hook = report, hook
data.SEED = int(os.environ.get("SEED", "0"))
train.main()
"""


def begin(
    folder: Path, *words: str, devices: int = 1, **variables: object
) -> subprocess.Popen[str]:
    """Start the program in a process of its own."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{DEVICES}{devices}"}
    environment.pop("CHECKPOINTS", None)
    environment |= {name: str(value) for name, value in variables.items()}
    command = [sys.executable, "-c", DRIVER.format(folder=str(folder)), *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, dict[int, list[float]], str]:
    """Wait for its end: exit code, the losses of each update, and what it printed as an error."""
    output, error = process.communicate(timeout=LIMIT)
    losses = {
        int(number): [float.fromhex(word) for word in values.split()]
        for number, values in re.findall(r"^loss (\d+) (.*)$", output, re.MULTILINE)
    }
    return process.returncode, losses, error


def hosts(
    folder: Path, *words: str, **first: object
) -> list[tuple[int, dict[int, list[float]], str]]:
    """Run two hosts of four devices; `first` are variables of the first host."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    together = {"HOST_COUNT": 2, "COORDINATOR_ADDRESS": address}
    processes = [
        begin(
            folder, *words, devices=4, HOST_INDEX=index, **together, **(first if not index else {})
        )
        for index in range(2)
    ]
    return [ended(process) for process in processes]


def require_close(losses: dict[int, list[float]], expected: dict[int, list[float]]) -> None:
    assert losses.keys() == expected.keys()
    for number, values in losses.items():
        np.testing.assert_allclose(values, expected[number], rtol=1e-6)


def test_losses_are_those_of_a_single_device(tmp_path: Path) -> None:
    folder = write_toy(tmp_path / "program")
    single, several = tmp_path / "single", tmp_path / "several"
    code, expected, error = ended(begin(folder, "--save", str(single)))
    assert (code, len(expected)) == (0, 12), error
    code, losses, error = ended(begin(folder, "--save", str(several), devices=8))
    assert code == 0, error
    require_close(losses, expected)
    weights = load_file(single)
    for name, array in load_file(several).items():
        np.testing.assert_allclose(array, weights[name], rtol=1e-4, atol=1e-6)
    (code, losses, error), (other, none, _) = hosts(folder)
    assert (code, other, none) == (0, 0, {}), error
    require_close(losses, expected)


def test_a_checkpoint_of_eight_devices_is_continued_on_a_single_device(tmp_path: Path) -> None:
    folder, run = write_toy(tmp_path / "program"), str(tmp_path / "run")
    _, expected, _ = ended(begin(folder))
    code, losses, error = ended(
        begin(folder, "--checkpoints", run, devices=8, KILL=5, SIGNAL=int(signal.SIGTERM))
    )
    assert (code, max(losses)) == (75, 5), error
    code, more, error = ended(begin(folder, "--checkpoints", run))
    assert (code, min(more)) == (0, 6), error
    require_close(losses | more, expected)


def test_all_hosts_end_at_one_update_and_continue(tmp_path: Path) -> None:
    folder, run = write_toy(tmp_path / "program"), str(tmp_path / "run")
    _, expected, _ = hosts(folder)[0]
    first, second = hosts(folder, "--checkpoints", run, KILL=2, SIGNAL=int(signal.SIGTERM))
    assert (first[0], second[0]) == (75, 75), first[2] + second[2]
    third, fourth = hosts(folder, "--checkpoints", run)
    assert (third[0], fourth[0]) == (0, 0), third[2] + fourth[2]
    assert first[1].keys() | third[1].keys() == expected.keys()
    assert first[1] | third[1] == expected


def test_hosts_with_different_batches_are_refused(tmp_path: Path) -> None:
    results = hosts(write_toy(tmp_path / "program"), SEED=1)
    assert all(code for code, _, _ in results)
    assert any("the hosts have different batches" in error for _, _, error in results)


def test_a_killed_run_continues_with_the_losses_of_an_uninterrupted_one(tmp_path: Path) -> None:
    folder, run = write_toy(tmp_path / "program"), str(tmp_path / "run")
    _, expected, _ = ended(begin(folder))
    draws = np.random.default_rng(11)
    losses: dict[int, list[float]] = {}
    for update in sorted(draws.choice(np.arange(2, 12), 3, replace=False)):
        killed = begin(
            folder, "--checkpoints", run, "--every", "1", KILL=update, SIGNAL=int(signal.SIGKILL)
        )
        code, more, _ = ended(killed)
        assert code == -signal.SIGKILL
        # An update may be computed again; its losses are the same to the last bit.
        assert all(more[number] == losses[number] for number in more.keys() & losses.keys())
        losses |= more
    code, more, error = ended(begin(folder, "--checkpoints", run))
    assert code == 0, error
    losses |= more
    assert all(values == expected[number] for number, values in losses.items())
    assert max(losses) == 11
