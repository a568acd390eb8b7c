"""Reads of what nothing tells the place of: no step holds them without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.rewrite.rules.step.wrapping import READ_AFTER
from migrate.syntax.source import parse

SCRIPT = """\
import torch
from timm.data import RealLabelsImagenet

from kinds import made, score


@torch.no_grad()
def evaluate(loader, kind, real, names):
    model = torch.nn.Linear(4, 4).cuda().eval()
    labels = RealLabelsImagenet(names, real) if real else None
    other = RealLabelsImagenet(names, real)
    counted = made(names)
    scores = []
    for images, target in loader:
        images = images.cuda()
        out = model(images)
        {lines}
        scores.append(score(out, images).mean())
    return scores
"""
CHOSEN = 'chosen = {"a": lambda: model(images), "b": lambda: model(images) + 1}[kind]()'
READS = {
    "one of several functions": (
        f"{CHOSEN}\n        "
        'shown = torch.clamp(chosen * 2, 0, 255).to("cpu", dtype=torch.uint8).numpy()'
    ),
    "an unknown function": 'chosen = made(kind)\n        shown = chosen.to("cpu")',
    "an unknown function, cpu": "chosen = made(kind)\n        shown = chosen.cpu()",
    "a method of timm": "other.add_result(out)",
}
NO_READS = {
    "a dtype": "shown = made(kind).to(torch.float32)",
    "on the host": "kept = torch.zeros(3)\n        shown = kept.numpy()",
    "another object's method": "counted.add_result(out)",
}


def rewritten(lines: str) -> Rewrite:
    return rewrite_source(parse(SCRIPT.format(lines=lines).encode(), Path("evaluate.py")))


def step_of(done: Rewrite) -> str:
    """Return the lines of the block of the step."""
    _, _, after = done.data.decode().partition("with torch_xla.step():\n")
    lines = after.splitlines()
    end = next(i for i, line in enumerate(lines) if line.strip() and not line.startswith(" " * 12))
    return "\n".join(lines[:end])


@pytest.mark.parametrize("case", READS)
def test_the_read_goes_below_the_step(case: str) -> None:
    done = rewritten(READS[case])
    assert "score(out, images)" in step_of(done)
    for read in ('.to("cpu"', ".cpu()", ".numpy()", ".add_result("):
        assert read not in step_of(done)
        assert (read in done.data.decode()) is (read in READS[case])


def test_the_step_ends_above_a_read_that_it_needs() -> None:
    done = rewritten('chosen = made(kind)\n        images += chosen.to("cpu").max()')
    assert '.to("cpu")' not in step_of(done)
    assert [f for f in done.findings if READ_AFTER in f.message]


@pytest.mark.parametrize(
    ("line", "inside", "below"),
    [
        ("shown = (out * 2).cpu().numpy()", "shown = (out * 2)\n", "shown = shown.cpu().numpy()"),
        (
            'shown = (out * 2).to("cpu", dtype=torch.uint8).permute(0, 1).numpy()',
            "shown = (out * 2)\n",
            'shown = shown.to("cpu", dtype=torch.uint8).permute(0, 1).numpy()',
        ),
        ("shown = (out * 2).cpu().view(kind).numpy()", "", "shown = (out * 2).cpu().view(kind)"),
    ],
)
def test_no_part_of_a_read_in_several_calls_stays(line: str, inside: str, below: str) -> None:
    done = rewritten(line)
    assert inside in step_of(done)
    assert ".cpu()" not in step_of(done)
    assert f"        {below}" in done.data.decode()


@pytest.mark.parametrize("case", NO_READS)
def test_what_reads_nothing_of_the_device_stays(case: str) -> None:
    done = rewritten(NO_READS[case])
    assert NO_READS[case].splitlines()[-1].strip() in step_of(done)
    assert not [f for f in done.findings if f.rule == "step"]
