"""`--defer-reads`: which values wait, the same printed bits, and fewer transfers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.rewrite.left.codes import code_of
from migrate.rewrite.options import DEFAULT, RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.rewrite.rules.step.deferral.observers import LOOKED_AT
from migrate.syntax.source import parse
from shims import activate
from tests.waiting import LIMIT

DEFERRED = RewriteOptions(defer_reads=True)
STEP = """
    with torch_xla.step():
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
"""


def run(script: str, options: RewriteOptions = DEFERRED) -> Rewrite:
    return rewrite_source(parse(script.encode(), Path("script.py")), options=options)


def loop(
    below: str, above: str = "", after: str = "", head: str = "for i, x in loader:"
) -> Rewrite:
    """Rewrite a training loop with `below` under its step."""
    body = textwrap.indent(
        f"{above}\n{head}\n"
        + textwrap.indent(textwrap.dedent(STEP).strip() + "\n" + below, "    ")
        + f"\n{after}\n",
        "    ",
    )
    return run(f"import torch\nimport torch_xla\n\n\ndef train(model, optimizer, loader):\n{body}")


def stays(done: Rewrite) -> str:
    """Return what is said of the values that are still read in every step; nothing else may change."""
    assert not done.changed
    (note,) = (note for note in done.findings if note.rule == "defer-reads")
    return note.message


def test_without_the_option_nothing_is_deferred() -> None:
    script = (
        "import torch_xla\n\n\ndef train(model, optimizer, loader):\n    total = 0.0\n"
        "    for x in loader:\n        with torch_xla.step():\n            loss = model(x).mean()\n"
        "            loss.backward()\n            optimizer.step()\n        total += loss.item()\n"
        "    return total\n"
    )
    assert not run(script, DEFAULT).changed
    assert run(script).changed


def test_a_sum_is_read_after_the_loop_where_that_alone_looks_at_it() -> None:
    done = loop("total += loss.item()", "total = 0.0", "return total").data.decode()
    assert "        total_pending.append(loss.detach())\n" in done
    assert (
        "    for value in read_values(total_pending):\n        total += value\n    return total\n"
    ) in done


def test_a_sum_that_starts_anew_is_not_read_after_the_loop() -> None:
    shown = "total += loss.item()\nif i % 5 == 0:\n    print(total)\n    total = 0.0"
    done = loop(shown, "total = 0.0").data.decode()
    assert done.count("read_values(total_pending)") == 1


def test_a_list_is_extended() -> None:
    done = loop("values.append(loss.item())", "values = []", "return values").data.decode()
    assert "    values.extend(read_values(values_pending))\n    return values\n" in done


def test_the_size_of_the_batch_is_kept_beside_the_value() -> None:
    done = loop("total += loss.item() * x.size(0)", "total = 0.0", "return total").data.decode()
    assert "total_pending.append((loss.detach(), x.size(0)))" in done
    assert "for value, count in read_rows(total_pending):\n        total += value * count\n" in done


def test_a_value_that_is_only_shown_is_read_there() -> None:
    done = loop("lossf = loss.item()\nif i % 10 == 0:\n    print(lossf)").data.decode()
    assert (
        "        if i % 10 == 0:\n            lossf = loss.item()\n            print(lossf)\n"
        in done
    )
    assert "pending" not in done


def test_all_replicas_read_what_one_of_them_shows() -> None:
    shown = "total += loss.item()\nif i % 5 == 0 and rank == 0:\n    print(total)"
    done = loop(shown, "total = 0.0").data.decode()
    assert "        if i % 5 == 0:\n            for value in read_values(" in done
    assert "        if i % 5 == 0 and rank == 0:\n            print(total)\n" in done


def test_any_name_may_count_the_turns() -> None:
    shown = "total += loss.item()\nif batch % 5 == 0 and batch > 0:\n    print(total)"
    done = loop(shown, "total = 0.0", head="for batch, x in enumerate(loader):").data.decode()
    assert "if batch % 5 == 0 and batch > 0:\n            for value in read_values(" in done


def test_the_portable_style_defers_too() -> None:
    script = (
        "import torch\n\n\ndef train(model, optimizer, loader):\n    total = 0.0\n"
        "    for x, y in loader:\n        x, y = x.cuda(), y.cuda()\n        loss = model(x, y)\n"
        "        loss.backward()\n        optimizer.step()\n        total += loss.item()\n"
        "    return total\n"
    )
    done = run(script, RewriteOptions(style="portable", defer_reads=True)).data.decode()
    assert "        with shims.step():\n" in done
    assert "        total_pending.append(loss.detach())\n" in done


def test_a_tensor_that_is_changed_later_is_copied() -> None:
    done = loop("total += loss.item()\nloss.zero_()", "total = 0.0", "return total").data.decode()
    assert "total_pending.append(loss.detach().clone())" in done
    # A tensor that outlives the step is the same memory in every step.
    done = loop("total += norm.item()", "total, norm = 0.0, torch.ones(())", "return total")
    assert "total_pending.append(norm.detach().clone())" in done.data.decode()


@pytest.mark.parametrize(
    ("below", "why"),
    [
        (
            "value = loss.item()\nif value != value:\n    raise SystemExit\ntotal += value",
            "decides",
        ),
        ("total += loss.item()\nif total > 9:\n    break", "decides what comes next"),
        ("bar.set_postfix(loss=loss.item())", "is shown in every step"),
        ("total += loss.item()\nprint(total)", "is looked at in every step"),
        (
            "total += loss.item()\nif rank == 0:\n    print(total)",
            "may differ between the replicas",
        ),
        ("total += loss.item()\nif slow():\n    print(total)", "may differ between the replicas"),
        ("meter.update(loss.item())\nif i % 9 == 0:\n    print(meter.sum)", "may hold"),
        ("total += loss.item() * scale(x)", "no number"),
        ("weight = loss.item()\nmodel.weigh(weight)", "does something else"),
        ("self.total += loss.item()", "does something else"),
        ("first, second = loss.item(), loss.item()", "several values"),
        ("total += loss.item()\nscheduler.step(total)", "is looked at in every step"),
        ("total += loss.item()\nlater = lambda: total", "which other functions see"),
    ],
)
def test_what_stays_is_said_once(below: str, why: str) -> None:
    assert why in stays(loop(below, "total = 0.0", "return total"))


def test_an_object_that_may_do_more_than_add_up_is_left_alone() -> None:
    below = "meter.update(loss.item())\nif i % 9 == 0:\n    print(meter.sum)"
    assert "only adds up" in stays(loop(below, "meter = Screen()"))


def test_what_holds_the_meter_is_watched_too() -> None:
    script = """
        import torch_xla


        def train(model, optimizer, loader):
            losses = AverageMeter()
            with Screen(losses) as screen:
                for x in loader:
                    with torch_xla.step():
                        loss = model(x).mean()
                        loss.backward()
                        optimizer.step()
                    losses.update(loss.item())
                    screen.show()
    """
    assert LOOKED_AT in stays(run(textwrap.dedent(script).strip() + "\n"))
    for maker in ("screen = Screen([losses])", "screen = Screen()\nscreen.add(losses)"):
        done = loop(
            "losses.update(loss.item())\nscreen.show()", f"losses = AverageMeter()\n{maker}"
        )
        assert LOOKED_AT in stays(done)


def test_an_iterator_that_prints_the_meter_is_seen() -> None:
    done = loop(
        "logger.update(loss=loss.item())",
        "logger = MetricLogger()",
        head="for i, x in logger.log_every(loader):",
    )
    assert LOOKED_AT in stays(done)


def test_a_sum_that_an_exception_shows_is_read_in_every_step() -> None:
    script = """
        import torch_xla


        def train(model, optimizer, loader):
            total = 0.0
            try:
                for x in loader:
                    with torch_xla.step():
                        loss = model(x).mean()
                        loss.backward()
                        optimizer.step()
                    total += loss.item()
            except KeyboardInterrupt:
                print(total)
            return total
    """
    assert "exception" in stays(run(textwrap.dedent(script).strip() + "\n"))


TRAINING = """
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class AverageMeter:
    def __init__(self):
        self.value, self.sum, self.count = 0.0, 0.0, 0

    def update(self, value, n=1):
        self.value = value
        self.sum += value * n
        self.count += n


def batches(rank, number):
    generator = torch.Generator().manual_seed(rank)
    for _ in range(number):
        x = torch.randn(4, 3, generator=generator)
        yield x, x.sum(1, keepdim=True) * 0.3


def train(rank, accum=3):
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(3, 1).to("cuda"), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, running_loss, history = AverageMeter(), 0.0, []
    for step, (x, y) in enumerate(batches(rank, 60)):
        x, y = x.to("cuda"), y.to("cuda")
        output = model(x)
        loss = (output - y).abs().mean()
        losses.update(loss.item(), x.size(0))
        loss /= accum
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        running_loss += loss.item()
        history.append(output.square().mean().item())
        if step % 10 == 9:
            print(rank, step, repr(running_loss / 10), repr(losses.value), repr(losses.sum / losses.count))
            running_loss = 0.0
    print(rank, repr(losses.sum), len(history), history[::9])


def main():
    dist.init_process_group("nccl")
    sys.stdout = open(f"{dist.get_rank()}.txt", "w")
    train(dist.get_rank())
    sys.stdout.close()


if __name__ == "__main__":
    main()
"""
TRANSFERS = """    import torch_xla.debug.metrics

    print("transfers", torch_xla.debug.metrics.metric_data("TransferFromDeviceTime")[0])
"""


def lines(script: str, folder: Path) -> list[str]:
    """Run a rewritten script on two simulated replicas; return what each of them prints."""
    path = folder / "script.py"
    counted = script.replace("    sys.stdout.close()\n", TRANSFERS + "    sys.stdout.close()\n")
    path.write_text(counted)
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **activate.environment("simulate", 2)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [line for rank in "01" for line in (folder / f"{rank}.txt").read_text().splitlines()]


@pytest.mark.long
@pytest.mark.xla
def test_the_same_bits_with_a_tenth_of_the_transfers(tmp_path: Path) -> None:
    shown, transfers = [], []
    for options in (DEFAULT, DEFERRED):
        printed = lines(run(TRAINING, options).data.decode(), tmp_path)
        shown.append([line for line in printed if not line.startswith("transfers")])
        transfers.append([int(line.split()[1]) for line in printed if line.startswith("transfers")])
    assert len(shown[0]) == 2 * 7
    assert shown[0] == shown[1]
    every_step, deferred = transfers
    # Three values: in 60 steps; in the six prints, the list after the loop alone.
    assert every_step[0] - deferred[0] == 3 * 60 - (2 * 6 + 1), transfers
    assert every_step[0] == every_step[1]
    assert deferred[0] == deferred[1]


def test_a_check_before_the_update_stays_and_is_reported() -> None:
    script = """
import math

import torch


def train(model, optimizer, loader):
    model.cuda()
    total = 0.0
    for i, x in enumerate(loader):
        loss = model(x.cuda()).mean()
        loss.backward()
        value = loss.item()
        if not math.isfinite(value):
            raise ValueError(i)
        optimizer.step()
        total += value
        if i % 10 == 9:
            print(total)
"""
    done = run(script)
    lines = [line.strip() for line in done.data.decode().splitlines()]
    found = [
        lines.index(one) for one in ("value = loss.item()", "raise ValueError(i)", "total += value")
    ]
    assert found == sorted(found)
    assert lines.index("raise ValueError(i)") < lines.index("optimizer.step()") < found[-1]
    (note,) = (note for note in done.findings if note.rule == "defer-reads")
    assert "`value = loss.item()` is read between two steps" in note.message


def test_reads_that_stay_have_a_code_of_their_own() -> None:
    script = (
        "import torch_xla\n\n\ndef train(model, optimizer, loader):\n    total = 0.0\n"
        "    for x in loader:\n        with torch_xla.step():\n            loss = model(x).mean()\n"
        "            loss.backward()\n            optimizer.step()\n        total += loss.item()\n"
        "        if total > 100:\n            break\n"
    )

    def codes(ignored: str) -> set[str]:
        return {code_of(note) for note in run(script, ignoring(ignored)).findings}

    def ignoring(code: str) -> RewriteOptions:
        return RewriteOptions(defer_reads=True, config=Config(ignore=(code,)))

    assert "XLA889" in codes("XLA208")
    assert "XLA889" not in codes("XLA889")
