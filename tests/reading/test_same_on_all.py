"""Which tests come out the same on all replicas: saves and work on the device ask, by one answer."""

from __future__ import annotations

import textwrap
from pathlib import Path

import libcst as cst
import pytest

from migrate.reading.replicas.options import same_on_all
from migrate.reading.script import Script
from migrate.syntax.source import parse
from migrate.syntax.tree import code


def same(text: str) -> bool:
    """Return the answer for the test of the only `if` of a script."""
    script = Script(parse(textwrap.dedent(text).encode(), Path("script.py")))
    (asked,) = script.all_of(cst.If)
    return same_on_all(asked.test, script)


@pytest.mark.parametrize(
    "text",
    [
        "def f(args, epoch):\n    if args.save_it and epoch % 2 == 0:\n        pass",
        "def f(every=500):\n    seen = 0\n    seen += every\n    done = seen > 9\n    if done:\n        pass",
        "def f(turn: int):\n    if 0 <= turn < 3:\n        pass",
        "for turn in range(3):\n    if turn == 2:\n        pass",
        "lora_rank = 8\nif lora_rank > 0:\n    pass",
        "for turn, x in enumerate(loader):\n    if turn == 2:\n        pass",
        "class T:\n    def __init__(self):\n        self.turn = 0\n\n"
        "    def f(self):\n        if self.turn > 1:\n            pass",
        "def f(turn):\n    if turn > 1:\n        pass\n\n\nf(1)\nf(2 + 3)",
    ],
)
def test_what_follows_from_options_and_counters(text: str) -> None:
    assert same(text)


@pytest.mark.parametrize(
    "text",
    [
        "def f(better=False):\n    if better:\n        pass",
        "def f(better):\n    if better:\n        pass",
        "def f(turn):\n    if turn > 1:\n        pass\n\n\nf(1)\nf(accuracy)",
        "found = {}\nfound['better'] = accuracy > best\nif found['better']:\n    pass",
        "found = []\nif found:\n    pass",
        "for x, turn in enumerate(loader):\n    if turn:\n        pass",
        "for x in loader:\n    if x:\n        pass",
        "def f(trainer):\n    if trainer.improved:\n        pass",
        "class T:\n    def f(self, out):\n        self.kept = out.max() > 1\n"
        "        if self.kept:\n            pass",
        "import os\nme = int(os.environ['RANK'])\nif me == 0:\n    pass",
        "import time\ndone = time.time() > 9\nif done:\n    pass",
        "from groups import cp_rank\nif cp_rank == 0:\n    pass",
        "import groups\n\n\nclass T:\n    def __init__(self):\n        self.tp_rank = groups.mine.tp_rank\n\n"
        "    def f(self):\n        if self.tp_rank == 0:\n            pass",
        "def f(better: int):\n    kept = False\n    while better:\n        pass\n"
        "    x = kept or accuracy\n    kept = x\n    if kept:\n        pass",
    ],
)
def test_what_each_replica_may_have_of_its_own(text: str) -> None:
    assert not same(text)


@pytest.mark.parametrize(
    ("test", "alike"),
    [
        ("accuracy > best", False),
        ("loss.item() < 1", False),
        ("better", False),
        ("rank == 0", False),
        ("epoch > 3", True),
        ("control.stopped()", True),
        ("turn == len(keep.turns)", True),
    ],
)
def test_what_decides_whether_a_name_is_bound_anew(test: str, alike: bool) -> None:
    """`improved` was taken for an option, as only True and False are given to it."""
    source = f"""
        import control

        def f(found, accuracy, best, loss, rank, epoch, keep):
            improved = False
            better = accuracy > 1
            if {test}:
                improved = True
            keep(improved)
    """
    script = Script(parse(textwrap.dedent(source).encode(), Path("script.py")))
    (asked,) = [call for call in script.all_of(cst.Call) if code(call.func) == "keep"]
    assert same_on_all(asked.args[0].value, script) is alike
