"""Objects whose generators give the items of their argument, and what else is done with them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.train.slice.data import data_slice
from migrate.train.slice.loops import TrainingCalls
from migrate.train.slice.loss import loss_slice
from migrate.train.slice.text import ScriptText
from tests.train.test_data_slice import frames

LOGGER = """
class Logger:
    def __init__(self):
        self.seen = []

    def update(self, **values):
        self.seen.append(values)

    def log_every(self, items, header):
        done = 0
        for item in items:
            yield item
            done += 1
            print(header, done, self.seen)
"""
SCRIPT = """
    from util import misc


    def train(model, optimizer, loader):
        logger = misc.Logger()
        logger.update(start=0)
        for batch in logger.log_every(loader, "Epoch"):
            loss = model(batch)
            logger.update(loss=loss.item())
            loss.backward()
            optimizer.step()
            logger.update(rate=optimizer.param_groups[0]["lr"])


    def main():
        train(Model(), Optimizer(), list(range(3)))


    main()
"""


def written(folder: Path, logger: str, script: str = SCRIPT) -> str:
    """The data of the script beside a module with this logger."""
    (folder / "util").mkdir()
    (folder / "util" / "misc.py").write_text(logger)
    text = ScriptText(str(folder / "train.py"), textwrap.dedent(script))
    outer = [(" train(", "main"), ("main()", "<module>")]
    backward = frames(text, ("loss.backward", "train"), *outer)
    step = frames(text, ("optimizer.step", "train"), *outer)
    calls = TrainingCalls(backward, (step,), ())
    trained = {(f.function, f.first): ["model", "optimizer"] for f in backward[:1]}
    return data_slice(text, calls, loss_slice(text, backward[0]), ["batch"], trained=trained).text


def test_a_logger_of_batches_is_not_told_the_losses(tmp_path: Path) -> None:
    text = written(tmp_path, LOGGER)
    assert 'for batch in logger.log_every(loader, "Epoch"):' in text
    assert "update" not in text.replace("updated", "")
    assert "loss" not in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("yield item", "yield item if self.seen else None"),
        ("            yield item\\n", "            if self.seen:\\n                yield item\\n"),
        ("            done += 1", "            if self.seen: break\\n            done += 1"),
        ("in items:", "in self.seen or items:"),
        ("done = 0", "done, items = 0, items[:1]"),
        ("for item in items:", "for item in items:\\n            item = item + 1"),
    ],
)
def test_a_generator_that_may_give_others_keeps_what_its_object_is_told(
    old: str, new: str, tmp_path: Path
) -> None:
    old, new = old.replace("\\n", "\n"), new.replace("\\n", "\n")
    assert old in LOGGER
    text = SCRIPT.replace("            logger.update(loss=loss.item())\n", "")
    text = text.replace('rate=optimizer.param_groups[0]["lr"]', "rate=0.1")
    assert "logger.update(rate=0.1)" in written(tmp_path, LOGGER.replace(old, new), text)


def test_a_logger_that_is_handed_over_is_told_all(tmp_path: Path) -> None:
    text = SCRIPT.replace("            logger.update(loss=loss.item())\n", "")
    text = text.replace('rate=optimizer.param_groups[0]["lr"]', "rate=0.1")
    text = text.replace(
        'logger.log_every(loader, "Epoch")', 'chosen(logger.log_every(loader, ""), logger)'
    )
    assert "logger.update(rate=0.1)" in written(tmp_path, LOGGER, text)
