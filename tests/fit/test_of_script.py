"""What is said of a script that makes no step of training."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.fit.errors import FitError
from migrate.fit.lowered.of_script import failure, lower_script, modules_of, not_steady
from migrate.fit.lowered.watch import MOST_STEPS
from tests.waiting import LIMIT

FAILED = """hello
Traceback (most recent call last):
  File "/home/user/train_xla.py", line 12, in <module>
    main()
  File "/home/user/train_xla.py", line 9, in main
    assert accumulation % world == 0
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1, in f
AssertionError
"""
LAUNCHED = f"""concurrent.futures.process._RemoteTraceback:
\"\"\"
{FAILED}\"\"\"

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/user/train_xla.py", line 15, in <module>
    torch_xla.launch(main)
AssertionError
"""


@pytest.mark.parametrize(
    ("code", "said", "told"),
    [
        (1, FAILED, "exit code 1 before a step was taken at train.py:9 (AssertionError)"),
        (1, LAUNCHED, "exit code 1 before a step was taken at train.py:9 (AssertionError)"),
        (1, "", "exit code 1 before a step was taken (it said nothing)"),
        (1, "KeyError: 'RANK'", "needs the variables of torchrun"),
        (1, "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.",
         "this machine's memory is too small to run it with this batch; it says nothing of the TPU"),
        (1, "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried",
         "`--batch auto` looks for the largest that fits the TPU"),
        (-9, "step 1", "this machine's memory is too small"),
        (0, "starts\nfound 1 of 2 GPUs\n", "without a training step on the device (last output: found"),
        (0, "", "ended without a training step on the device; end each step"),
        (None, "", "made no training step within 5 s"),
    ],
)  # fmt: skip
def test_it_is_told_where_it_ended_and_what_it_said(code: int | None, said: str, told: str) -> None:
    def places(place: str) -> str:
        return place.replace("/home/user/train_xla", "train")

    assert told in str(failure(code, said, "train.py", 5.0, places))


def test_a_script_that_gets_no_batch_on_so_many_replicas_is_told_so() -> None:
    many = str(failure(0, "", "train.py", 5.0, str, devices=8))
    assert many.endswith("and give data for a batch on each of 8 replicas")
    assert "replicas" not in str(failure(0, "", "train.py", 5.0, str, devices=1))


@pytest.mark.parametrize(
    ("rest", "advice"),
    [("", "name its class: net.py:Pump"), ("Pump().l.sum().backward()\n", "end each step with")],
)
def test_a_file_of_a_model_is_no_script(rest: str, advice: str, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(f"from torch import nn\n\n\nclass Pump(nn.Module):\n    pass\n\n\n{rest}")
    assert advice in str(failure(0, "", "net.py", 5.0, str, modules_of(file)))


@pytest.mark.parametrize(("torchrun", "address"), [(False, "None"), (True, "127.0.0.1")])
@pytest.mark.long_cases("False-None")
def test_a_script_sees_an_address_only_where_torchrun_sets_one(
    torchrun: bool, address: str, tmp_path: Path
) -> None:
    script = tmp_path / "train_xla.py"
    script.write_text('import os\n\nprint("at", os.environ.get("MASTER_ADDR"))\n')
    with pytest.raises(FitError, match=f"last output: at {address}"):
        lower_script(script, [], devices=4, shown="train.py", timeout=LIMIT, torchrun=torchrun)


RESIZED = """
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn


def main(index):
    device = torch_xla.device()
    down, up = (nn.Conv2d(3, 3, 3, padding=1).to(device) for _ in range(2))
    optimizer = torch.optim.SGD([*down.parameters(), *up.parameters()], lr=0.1)
    for step in range(12):
        with torch_xla.step():
            x = torch.randn(2, 3, 8, 8).to(device)
            small = nn.functional.max_pool2d(nn.functional.dropout(down(x), 0.1), 2)
            large = nn.functional.interpolate(small, scale_factor=2, mode="bilinear")
            nn.functional.interpolate(up(large), size=5).pow(2).mean().backward()
            if step % 2:
                xm.reduce_gradients(optimizer)
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    torch_xla.launch(main)
"""


def test_resized_images_are_the_kernels_of_the_compiler(tmp_path: Path) -> None:
    script = tmp_path / "train_xla.py"
    script.write_text(RESIZED)
    step = lower_script(script, [], devices=4, shown="train.py", timeout=LIMIT)
    targets = [
        target
        for program in step.parts
        for target in (
            b"ResizeBilinear",
            b"ResizeBilinearGrad",
            b"ResizeNearest",
            b"ResizeNearestGrad",
        )
        if target in program.program.data
    ]
    assert len(set(targets)) == 4


def test_more_steps_are_asked_for_only_where_the_script_ended() -> None:
    assert "takes more steps" in not_steady(MOST_STEPS)
    assert "takes more steps" not in not_steady(MOST_STEPS + 1)
