"""An evaluation that computes a value and reads it in one statement: the step holds what is computed."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
import torch


@torch.no_grad()
def evaluate({model}, loader, loss_fn, meter, values):
    total, correct = 0.0, 0
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        {statement}
    return total, correct
"""
CASES = [
    ("total += loss_fn(model(x), y).item()", "loss = loss_fn(model(x), y)", "total += loss.item()"),
    (
        "total += loss_fn(model(x), y).item() * x.size(0)",
        "loss = loss_fn(model(x), y)",
        "total += loss.item() * x.size(0)",
    ),
    (
        "correct += (model(x).argmax(1) == y).sum().item()",
        "batch_correct = (model(x).argmax(1) == y).sum()",
        "correct += batch_correct.item()",
    ),
    (
        "values.append(loss_fn(model(x), y).mean().item())",
        "loss = loss_fn(model(x), y).mean()",
        "values.append(loss.item())",
    ),
    (
        "meter.update(loss_fn(model(x), y).item(), len(x))",
        "loss = loss_fn(model(x), y)",
        "meter.update(loss.item(), len(x))",
    ),
    ("loss = loss_fn(model(x), y).item()", "loss = loss_fn(model(x), y)", "loss = loss.item()"),
    (
        "total += model(x).mean().item()",
        "batch_total = model(x).mean()",
        "total += batch_total.item()",
    ),
]


def rewritten(statement: str, style: str = "native", model: str = "model") -> str:
    text = SCRIPT.format(statement=statement, model=model)
    source = parse(text.encode(), Path("evaluate.py"))
    done = rewrite_source(source, options=RewriteOptions(style=style))
    again = rewrite_source(
        parse(done.data, Path("evaluate.py")), options=RewriteOptions(style=style)
    )
    assert not again.changed
    assert not done.fails()
    return done.data.decode()


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(("statement", "inside", "below"), CASES)
def test_the_value_gets_a_name_in_the_step_and_is_read_below_it(
    style: str, statement: str, inside: str, below: str
) -> None:
    text = rewritten(statement, style)
    step = "with torch_xla.step():" if style == "native" else "with shims.step():"
    block = text[text.index(step) :]
    assert f"            {inside}\n        {below}\n" in block


def test_a_name_that_the_script_has_is_not_taken() -> None:
    text = rewritten("total += loss_fn(model(x), y).item()\n    loss = total")
    assert (
        "            batch_loss = loss_fn(model(x), y)\n        total += batch_loss.item()\n"
        in text
    )


@pytest.mark.parametrize(
    "statement",
    [
        "values.append(model(x).cpu())",
        "values.append([float(part) for part in model(x)])",
        "meter.update(loss_fn(model(x), y).item(), meter(x))",
    ],
)
def test_other_reads_stay_as_they_are(statement: str) -> None:
    text = rewritten(statement)
    assert "step()" not in text
    assert statement in text


@pytest.mark.parametrize("name", ["f", "generator_ema", "student"])
def test_a_parameter_of_which_nothing_is_known_runs_in_the_step(name: str) -> None:
    statement = f"out = {name}(x)\n        total += loss_fn(out, y).item()"
    text = rewritten(statement, model=name)
    assert f"            out = {name}(x)\n" in text[text.index("with torch_xla.step():") :]


def test_a_callback_without_a_moved_batch_gets_no_step() -> None:
    text = textwrap.dedent(
        """
        import torch


        @torch.no_grad()
        def convert(transform, files):
            for path in files:
                torch.save(transform(path).cpu(), path)


        def main(model):
            model.cuda()
        """
    )
    done = rewrite_source(parse(text.encode(), Path("convert.py")))
    assert b"step()" not in done.data
