"""Errors of a run: an exception of the script, or one of the simulation."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.observe.records import errors_of, note_error
from migrate.prove import settings
from migrate.prove.errors import ArgumentsRefusedError, RewriteFailedError
from migrate.prove.failure import disagreement, failure, is_own_ending
from migrate.prove.proof import record_run
from shims._started import stand_in
from shims.errors import ReplicaFailedError

OF_REPLICA = "shims.errors.ReplicaFailedError: replica 0 of 2 "


@pytest.mark.parametrize(
    "reason",
    [
        f"{OF_REPLICA}failed: RuntimeError: not on this device; all replicas",
        f"{OF_REPLICA}exited with status 1; all replicas were stopped",
        f"{OF_REPLICA}failed: the process ended with exit code 1 before its function returned",
        f"{OF_REPLICA}failed: killed by SIGKILL; all replicas were stopped",
        "ValueError: x",
    ],
)
def test_an_ending_of_the_script(reason: str) -> None:
    assert is_own_ending(reason)


@pytest.mark.parametrize(
    "reason",
    [
        f"{OF_REPLICA}failed: ReplicasDisagreeError: replica 1 waits in all_reduce",
        f"{OF_REPLICA}failed: RefusedOnTpuError: a broadcast",
        f"{OF_REPLICA}failed: PeerLostError: the other replica is gone; all replicas were stopped",
        "shims.errors.ReplicasDisagreeError: replica 1 waits",
        "exit code 1",
    ],
)
def test_an_error_of_the_simulation_or_none(reason: str) -> None:
    assert not is_own_ending(reason)


@pytest.mark.parametrize(
    ("reason", "where"),
    [
        (
            f"{OF_REPLICA}failed: ReplicasDisagreeError: replica 0 reads x; on a TPU; all replicas were "
            "stopped",
            "the replicas of the rewrite diverge: replica 0 reads x; on a TPU",
        ),
        (
            "shims.errors.ReplicasDisagreeError: replica 1 reads x",
            "the replicas of the rewrite diverge: replica 1 reads x",
        ),
        (
            f"{OF_REPLICA}failed: PeerLostError: replica 0 waits in x, which replica 1 never reaches: its "
            "function returned; all replicas were stopped",
            "the replicas of the rewrite diverge: replica 0 waits in x, which replica 1 never reaches: its "
            "function returned",
        ),
        (f"{OF_REPLICA}failed: PeerLostError: a process ended without a word", ""),
        (f"{OF_REPLICA}failed: ValueError: x; all replicas were stopped", ""),
    ],
)
def test_replicas_that_disagree_are_a_verdict(reason: str, where: str) -> None:
    assert disagreement(reason) == where


USAGE = "usage: train.py [-h] [--lr LR]\n"
REFUSED = "train.py: error: unrecognized arguments: --bogus 3\n"
CLICK = (
    "Usage: train.py [OPTIONS]\nTry 'train.py --help' for help.\n\nError: No such option: --bogus\n"
)


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            f"{USAGE}{USAGE}{REFUSED}{REFUSED}shims: rank 1 of 2 failed (exit code 2)\n",
            "unrecognized arguments: --bogus 3",
        ),
        (CLICK, "No such option: --bogus"),
    ],
)
def test_arguments_that_the_script_refuses_are_shown_once(output: str, line: str) -> None:
    error = failure(Path("train.py"), "original", 2, output)
    assert isinstance(error, ArgumentsRefusedError)
    assert (error.what, error.output) == (f"train.py refuses its arguments: {line}", "")
    assert "after --" in error.remedy


@pytest.mark.parametrize("rank", ["", "[rank1]: "])
def test_the_message_of_an_original_names_its_line(tmp_path: Path, rank: str) -> None:
    script = tmp_path / "train.py"
    script.touch()
    lines = (
        "Traceback (most recent call last):",
        f'  File "{script}", line 7, in <module>',
        "    main()",
        f'  File "{script}", line 4, in main',
        "KeyError: 'lr'",
    )
    output = "\n".join(f"{rank}{line}" for line in lines)
    error = failure(script, "original", 1, output)
    assert error.what.endswith("without the rewrite: KeyError: 'lr' (train.py:4)")


def test_another_exit_with_code_2_is_a_failure() -> None:
    error = failure(Path("train.py"), "original", 2, "train.py: error: no data\n")
    assert not isinstance(error, ArgumentsRefusedError)


REASON = "RuntimeError: Invalid device format: xla"
OUTPUT = """
Traceback (most recent call last):
  File "{0}/train.py", line 40, in _mp_fn
    main()
  File "{0}/nets/model.py", line 8, in forward
    name = xm.xla_device_hw("xla")
  File "/usr/lib/python3/site-packages/torch_xla/core/xla_model.py", line 144, in _xla_real_device
    raise RuntimeError("Invalid device format")
RuntimeError: Invalid device format: xla

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "{0}/train.py", line 44, in <module>
    torch_xla.launch(_mp_fn)
shims.errors.ReplicaFailedError: replica 0 of 2 failed: {1}
"""


@pytest.mark.parametrize("stands_in", [True, False])
def test_the_message_of_a_rewrite_names_its_line(tmp_path: Path, *, stands_in: bool) -> None:
    (tmp_path / "nets").mkdir()
    script, module = tmp_path / "train.py", tmp_path / "nets" / "model.py"
    name, line = str(script), "train.py:40"
    if stands_in:
        stand_in.mark(script, Path("/project/train.py"), {Path("/project/nets/model.py"): module})
        name, line = "train.py", "nets/model.py:8"
    error = failure(
        script, "xla", 1, OUTPUT.format(tmp_path, f"{REASON}; all replicas were stopped")
    )
    assert error.what == f"{name} failed on XLA where the original runs: {REASON} ({line})"
    assert line in error.remedy


@pytest.mark.parametrize(
    ("reason", "whose", "to_do"),
    [
        (
            "RuntimeError: operator 'aten::_weight_norm_interface_backward' is not implemented for TPU",
            "torch_tpu does not have this operator",
            "compute it on the CPU",
        ),
        (
            "NotImplementedError: Operator aten._scaled_dot_product_fused_attention_overrideable.default "
            "does not have a sharding strategy registered.",
            "neither torch nor torch_tpu shards the attention kernel",
            ".to_local() before it",
        ),
        (
            "RuntimeError: Attempted to call `variable.set_data(tensor)`, but `variable` and `tensor` have "
            "incompatible tensor type.",
            "torch moves no parameter to a TPU",
            "make it on the meta device",
        ),
        ("RuntimeError: shapes differ", "", "fix the rewritten script"),
    ],
)
def test_a_limit_of_torch_tpu_is_not_blamed_on_the_rewrite(
    reason: str, whose: str, to_do: str
) -> None:
    error = failure(Path("train_tpu.py"), "tpu", 1, f"{reason}\n")
    assert whose in error.what
    assert ("no fault of the rewrite" in error.what) is bool(whose)
    assert to_do in error.remedy
    assert "no fault" not in failure(Path("train_xla.py"), "xla", 1, f"{reason}\n").what


RAISES = """
import torch
import torch_xla
import torch_xla.runtime as xr


def _mp_fn(index):
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2).to("xla")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for i in range(3):
        with torch_xla.step():
            net(torch.ones(8, 4).to("xla")).sum().backward()
            optimizer.step()
        if i == 1 and xr.global_ordinal() == 0:
            raise RuntimeError("no such figure on this device")


if __name__ == "__main__":
    torch_xla.launch(_mp_fn)
"""


@pytest.mark.long
@pytest.mark.xla
def test_a_replica_that_raises_does_not_part_from_the_others(tmp_path: Path) -> None:
    script = tmp_path / "train_xla.py"
    script.write_text(RAISES)
    folder = tmp_path / "records"
    folder.mkdir()
    with pytest.raises(RewriteFailedError, match="no such figure on this device") as raised:
        record_run(script, [], side="xla", replicas=2, folder=folder, settings=settings.Settings())
    assert type(raised.value) is RewriteFailedError


def test_the_exceptions_that_end_processes_are_kept_in_one_line_each(tmp_path: Path) -> None:
    assert errors_of(tmp_path) == []
    note_error(tmp_path, ReplicaFailedError("replica 0 of 2 exited with status 1", "they stopped"))
    note_error(tmp_path, ValueError("one\ntwo"))
    first, second = errors_of(tmp_path)
    assert is_own_ending(first)
    assert second == "ValueError: one two"
