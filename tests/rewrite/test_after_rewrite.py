"""What a rewrite leaves behind is named at the lines of the original."""

from __future__ import annotations

import inspect
from pathlib import Path

from migrate.reading.facts import Facts
from migrate.reading.script import Script
from migrate.rewrite.left.after import Left, after_rewrite
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Note
from migrate.syntax.source import parse

BEFORE = """
import torch


def train(model, loader, optimizer):
    model.cuda()
    for x, y in loader:
        x = x.cuda()
        rows = x.nonzero()
        loss = model(x[rows]).mean()
        loss.backward()
        optimizer.step()
"""
AFTER = """
import torch
import torch_xla


def train(model, loader, optimizer):
    model.to("xla")
    for x, y in loader:
        with torch_xla.step():
            x = x.to("xla")
            rows = x.nonzero()
            loss = model(x[rows]).mean()
            loss.backward()
            optimizer.step()
"""


def left(before: str, after: str, spoken: list[Note]) -> tuple[Left, ...]:
    source = parse(inspect.cleandoc(after).encode() + b"\n", Path("script.py"))
    found = after_rewrite(inspect.cleandoc(before) + "\n", Facts(Script(source)), spoken)
    return tuple(one for one in found if not one.is_hint)


def test_the_place_is_that_of_the_original() -> None:
    (one,) = left(BEFORE, AFTER, [])
    assert (one.code, one.line, one.column) == ("XLA101", 8, 16)
    assert inspect.cleandoc(BEFORE).splitlines()[7][15:].startswith("x.nonzero()")


def test_what_the_rewrite_reports_is_not_said_twice() -> None:
    before = BEFORE.replace("x.nonzero()", "loss_of(x, x.mean().item())")
    after = AFTER.replace("x.nonzero()", "loss_of(x, x.mean().item())")
    (one,) = left(before, after, [])
    assert one.code == "XLA201"
    assert left(before, after, [Note(one.line, one.column, "step", "", own_code="XLA201")]) == ()
    assert left(before, after, [Note(one.line, one.column, "step", "")]) == (one,)
    assert left(before, after, [Note(one.line, one.column, "unhandled", "")]) == ()
    assert left(before, after, [Note(one.line, 1, "unhandled", "")]) == (one,)
    assert left(before, after, [Note(one.line, one.column, "ddp", "")]) == (one,)


def test_a_line_in_the_message_is_that_of_the_original() -> None:
    before = (
        BEFORE + "\n\ndef end(model, rank):\n    if rank == 0:\n        torch.save(model, 'm')\n"
    )
    after = AFTER + "\n\ndef end(model, rank):\n    if rank == 0:\n        torch.save(model, 'm')\n"
    _, one = left(before, after, [])
    assert (one.code, one.line) == ("XLA301", 16)
    assert "in line 15:" in one.message


def test_an_import_is_not_named_beside_its_uses() -> None:
    script = "from apex import amp\n\namp.half_function(f)\n"
    (one,) = left(script, script, [])
    assert (one.code, one.line) == ("XLA404", 1)
    use = Note(3, 1, "unhandled", "apex.amp.half_function: needs CUDA", subject="apex")
    (one,) = after_rewrite(script, Facts(Script(parse(script.encode(), Path("script.py")))), [use])
    assert one.is_hint


def test_what_only_costs_once_is_not_work_left_to_do() -> None:
    script = "import torch\n\nrows = torch.ones(3).cuda().nonzero()\n"
    assert left(script, script, []) == ()


def test_a_line_put_before_a_changed_one_does_not_move_the_place() -> None:
    before = """
    import torch


    class Head(torch.nn.Module):
        def forward(self, images, gpu):
            first = images.cuda(gpu, non_blocking=True).nonzero()
            return first + 1
    """
    after = """
    import torch


    class Head(torch.nn.Module):
        def forward(self, images, gpu):
            with torch.no_grad():
                first = images.to("xla").nonzero()
            return first + 2
    """
    (one,) = left(before, after, [])
    assert (one.code, one.line) == ("XLA101", 6)


def test_lines_named_in_a_message_are_those_of_the_original() -> None:
    source = b"""\
import torch
import torch.distributed as dist


def train(model, loader, optimizer):
    model.cuda()
    for x, y in loader:
        out = model(x.cuda())
        loss = torch.nn.functional.cross_entropy(out, y.cuda())
        loss.backward()
        optimizer.step()
        acc = (out.argmax(1) == y.cuda()).float().mean()
        if dist.get_rank() == 0:
            for number in range(int(acc.item())):
                print(number)
"""
    (note,) = rewrite_source(parse(source, Path("train.py"))).findings
    assert (note.rule, note.line) == ("together", 14)
    assert "after the step (line 12), read in some replicas only (line 13)" in note.message


def test_a_program_of_the_driver_stays_beside_other_findings() -> None:
    script = """\
import subprocess

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
model = torch.nn.Linear(2, 2).cuda()
print(model.weight.data_ptr())
if dist.get_rank() == 0:
    print(subprocess.run(["nvidia-smi"], capture_output=True))
    with open("model.pt", "wb") as file:
        torch.save(model.state_dict(), file)
"""
    found = rewrite_source(parse(script.encode(), Path("train.py"))).findings
    (program,) = [note for note in found if note.rule == "XLA407"]
    assert (program.line, program.is_hint) == (10, False)
