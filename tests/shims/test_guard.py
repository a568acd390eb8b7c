from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch

from shims.guard import RecompilationError, RecompilationWarning, guard
from tests.waiting import LIMIT

SETUP = """
import sys
import torch, torch_xla
from shims.guard import RecompilationError, guard

torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.power = 1

    def forward(self, x, scale=None, mask=None):
        y = self.inner(x) ** self.power
        return y if mask is None else y * mask["keep"][0]

model = Net().to("xla")
criterion = torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step(x, **more):
    loss = criterion(model(x, **more), torch.zeros_like(x))  # the user's call
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch_xla.sync()

def rows(n):
    x = torch.ones(n, 4).to("xla")
    torch_xla.sync()
    return x
"""


def on_xla(loop: str, tmp_path: Path) -> list[str]:
    script = tmp_path / "loop.py"
    script.write_text(SETUP + textwrap.dedent(loop))
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PJRT_DEVICE": "CPU", "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(SETUP.splitlines(), start=1) if text in line)


@pytest.mark.xla
def test_on_xla_the_input_that_varies_is_named_and_a_clean_loop_passes(tmp_path: Path) -> None:
    lines = on_xla(
        """
        with guard(max_compiles=3) as clean:
            for _ in range(8):
                step(rows(3))
        print(clean.compiles, clean.changes)

        done = 0
        try:
            with guard(max_compiles=2):
                for n in (3, 3, 5, 3, 6, 7, 7, 8):
                    step(rows(n))
                    done += 1
        except RecompilationError as error:
            print(done, error)

        try:
            with guard(max_compiles=0):
                for n in (3, 3):
                    keep = torch.ones(n + done, 1).to("xla")
                    x = rows(n + done)
                    step(x, mask={"keep": [keep]})
                    done += 1
        except RecompilationError as error:
            print(done, error)
        """,
        tmp_path,
    )
    compiles, changes = lines[0].split(maxsplit=1)
    assert 1 <= int(compiles) <= 3
    assert changes == "()"
    done, named = lines[1].split(maxsplit=1)
    assert int(done) < 8
    where = f"{tmp_path / 'loop.py'}:{line_of('the user')}"
    assert f"input x of Net: float32[3, 4] → float32[5, 4] at {where}" in named
    assert "input input of MSELoss: float32[3, 4] → float32[5, 4]" in named
    assert named.endswith("use drop_last=True")


@pytest.mark.xla
@pytest.mark.long
def test_on_xla_a_python_number_is_told_from_a_shape(tmp_path: Path) -> None:
    lines = on_xla(
        """
        def run(loop):
            try:
                with guard(max_compiles=3):
                    loop()
            except RecompilationError as error:
                print(error)

        def hidden():
            for n in range(8):
                model.power = n + 2
                step(rows(3))

        def given():
            for n in range(8):
                model.power = n + 20
                step(rows(3), scale=n)

        def shapes_and_a_number():
            model.power = 1
            for n in range(4, 12):
                step(rows(n), scale=n)

        def dtypes_of_a_keyword():
            for dtype in (torch.float32, torch.int32, torch.bool, torch.int64, torch.float16):
                keep = torch.ones(3, 1, dtype=dtype).to("xla")
                step(rows(3), mask={"keep": [keep]})

        for loop in (hidden, given, shapes_and_a_number, dtypes_of_a_keyword):
            run(loop)
        """,
        tmp_path,
    )
    hidden, given, both, dtypes = lines
    assert "no input of a module changed shape (compiled after" in hidden
    assert "look for a Python number" in hidden
    assert "input scale of Net: number 0 → number 1 at" in given
    assert given.endswith("no input changed shape: give the number as a tensor on the device")
    assert "input x of Net: float32[4, 4] → float32[5, 4]" in both
    assert "scale" not in both
    assert "input mask['keep'][0] of Net: float32[3, 1] → int32[3, 1]" in dtypes


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, scale: float = 1.0, **more: object) -> torch.Tensor:
        if x.shape[0] == 99:
            raise ValueError("99 rows")
        return self.inner(x) * scale


def test_elsewhere_signatures_are_counted() -> None:
    model, criterion = Net(), torch.nn.MSELoss()
    with guard(max_compiles=2) as watched:
        for n in (3, 3, 5, 3, 5):
            criterion(model(torch.ones(n, 4), scale=float(n)), torch.ones(n, 2))
    assert watched.compiles == 2
    assert next(change.input for change in watched.changes if change.module == "Net") == "x"

    @guard(max_compiles=2)
    def varying() -> None:
        for n in (3, 5, 6):
            model(torch.ones(n, 4), names=["a"])

    with pytest.raises(RecompilationError) as caught:
        varying()
    assert "3 distinct input signatures, 2 allowed" in str(caught.value)
    assert "float32[5, 4] → float32[6, 4]" in str(caught.value)
    assert f"{__file__}:" in str(caught.value)


def test_as_a_decorator_and_as_a_warning() -> None:
    model = Net()

    @guard(max_compiles=1)
    def evaluate(rows: int) -> int:
        """Evaluate."""
        model(torch.ones(rows, 4))
        return rows

    assert [evaluate(3), evaluate(4)] == [3, 4]
    assert evaluate.__doc__ == "Evaluate."
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with guard(max_compiles=1, action="warn"):
            for rows in (1, 2, 3, 4):
                model(torch.ones(rows, 4))
    (warning,) = caught
    assert warning.category is RecompilationWarning
    assert warning.filename == __file__


def test_the_hooks_go_and_errors_of_the_loop_come_first() -> None:
    hooks = torch.nn.modules.module
    before = dict(hooks._global_forward_pre_hooks), dict(hooks._global_forward_hooks)
    model = Net()

    @guard(max_compiles=1)
    def failing() -> None:
        model(torch.ones(1, 4))
        model(torch.ones(99, 4))

    with pytest.raises(ValueError, match="99 rows"):
        failing()
    watched = guard(max_compiles=5)
    with watched:
        with pytest.raises(ValueError, match="99 rows"):
            model(torch.ones(99, 4))
        model(torch.ones(2, 4))
    assert watched.compiles == 2  # after an error the next call counts as the program's own again
    assert (dict(hooks._global_forward_pre_hooks), dict(hooks._global_forward_hooks)) == before
    with pytest.raises(ValueError, match="max_compiles"):
        guard(max_compiles=-1)
    with pytest.raises(ValueError, match="action"):
        guard(max_compiles=1, action="stop")  # type: ignore[arg-type]
