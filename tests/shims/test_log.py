from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from shims.log import log
from tests.waiting import LIMIT


def python(code: str, *args: object) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PJRT_DEVICE": "CPU"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_without_xla_the_call_is_made_at_once() -> None:
    seen: list[Any] = []
    loss = torch.tensor(2.0, requires_grad=True) * 3
    log(lambda *values: seen.extend(values), loss, {"step": 4, "all": [loss]}, "text")
    assert seen[0].item() == 6.0
    assert not seen[0].requires_grad
    assert seen[1]["step"] == 4
    assert seen[1]["all"][0].item() == 6.0
    assert seen[2] == "text"
    log.flush()  # there is nothing to do
    with pytest.raises(ZeroDivisionError):
        log(lambda: 1 / 0)


TRAINING = """
    import json, sys, torch, torch_xla, torch_xla.debug.metrics as met
    from shims.log import log
    for how in sys.argv[1:]:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.randn(6, 4, 8).to("xla")
        torch_xla.sync()
        seen = []
        executions = lambda: met.metric_data("ExecuteTime")[0]
        for step in range(6):
            if step == 1:
                torch_xla.sync(wait=True)
                before = executions()
            loss = model(x[0]).square().mean()
            if how == "item":
                seen.append(loss.item())
            if how == "log":
                log(seen.append, loss)
            loss.backward()
            norm = model.weight.grad.norm()
            if how == "item":
                seen.append(norm.item())
            if how == "log":
                log(seen.append, norm)
                log(seen.append, float(step))
                norm.zero_()
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync()
        torch_xla.sync(wait=True)
        print(executions() - before)
        print(json.dumps([float(value) for value in seen]))
"""


@pytest.mark.xla
def test_logged_scalars_cost_no_execution_and_item_does() -> None:
    lines = iter(python(TRAINING, "nothing", "log", "item"))
    (plain, _), (logged, values), (read, items) = zip(lines, lines, strict=True)
    assert int(logged) == int(plain)
    assert int(read) >= int(plain) + 5
    # The same values, in order, although `norm` was zeroed in place after it was logged.
    every = json.loads(values)
    assert [value for n, value in enumerate(every) if n % 3 != 2] == pytest.approx(
        json.loads(items)
    )
    assert every[2::3] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert len(set(every)) > 6


@pytest.mark.xla
@pytest.mark.long
def test_nothing_is_lost_at_exit_or_behind_an_error(tmp_path: Path) -> None:
    lines = python(
        """
        import torch, torch_xla
        from shims.log import log
        x = torch.arange(3.0, device="xla")
        def fails(value):
            raise ValueError(f"no {value.item()}")
        log(print, x[0])
        log(fails, x[1])
        log(print, x[2])
        try:
            torch_xla.sync()
        except ValueError as error:
            print(error)
        log(print, "after", x.sum())
        torch_xla.sync()
        log(print, "flushed", x.sum())
        log.flush()
        log(print, "at exit", {"x": [x.sum()]})
        """
    )
    assert lines == [
        "tensor(0.)",
        "no 1.0",
        "tensor(2.)",
        "after tensor(3.)",
        "flushed tensor(3.)",
        "at exit {'x': [tensor(3.)]}",
    ]


@pytest.mark.xla
@pytest.mark.long
def test_nothing_is_lost_at_the_end_of_a_spawned_replica(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, torch, torch.multiprocessing as mp
            from shims.log import log

            def main(rank):
                import torch_xla
                x = torch.ones(2, device="xla") * rank
                log(lambda value: open(f"{sys.argv[1]}-{rank}", "w").write(str(value)), x.sum())

            if __name__ == "__main__":
                mp.spawn(main, nprocs=2)
            """
        )
    )
    subprocess.run(
        [sys.executable, str(script), str(tmp_path / "rank")],
        env={**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=LIMIT,
    )
    assert (tmp_path / "rank-1").read_text() == "tensor(2.)"
    assert (tmp_path / "rank-0").read_text() == "tensor(0.)"
