"""What functions set in their arguments, and calls of them that the data need."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from migrate.train.frames import Frame
from migrate.train.slice.data import data_slice
from migrate.train.slice.loops import TrainingCalls, call_of
from migrate.train.slice.loss import loss_slice
from migrate.train.slice.sets import sets_in_arguments
from migrate.train.slice.text import ScriptText
from tests.train.test_data_slice import frames

MODULE = """
def set_rank(options, rank):
    options.rank = rank
    setattr(options, "is_first", rank == 0)


def init_distributed_mode(args, extra=None):
    set_rank(args, 0)
    args.distributed = True
    extra["world"] = 1
    local = args.other
"""
CALL = "{}(args, extra=config)"


@pytest.mark.parametrize(
    ("imported", "called"),
    [
        ("import misc", "misc.init_distributed_mode"),
        ("import util.misc as misc", "misc.init_distributed_mode"),
        ("from util import misc", "misc.init_distributed_mode"),
        ("from util.misc import init_distributed_mode as init", "init"),
        ("from util import init_distributed_mode", "init_distributed_mode"),
        (MODULE, "init_distributed_mode"),
    ],
)
def test_attributes_and_keys_that_a_function_sets_of_its_arguments(
    imported: str, called: str, tmp_path: Path
) -> None:
    (tmp_path / "util").mkdir()
    for place in (tmp_path / "misc.py", tmp_path / "util" / "misc.py"):
        place.write_text(MODULE)
    (tmp_path / "util" / "__init__.py").write_text("from .misc import init_distributed_mode\n")
    source = f"{imported}\n{CALL.format(called)}\n"
    script = ScriptText(str(tmp_path / "train.py"), source)
    (call,) = (s.value for s in script.tree.body if isinstance(s, ast.Expr))
    assert isinstance(call, ast.Call)
    assert sets_in_arguments(script, call) == {
        "args": {"rank", "is_first", "distributed"},
        "config": {"world"},
    }


@pytest.mark.parametrize(
    "imported", ["import torch as misc", "from elsewhere import misc", "misc = make()"]
)
def test_nothing_is_known_of_other_functions(imported: str, tmp_path: Path) -> None:
    script = ScriptText(str(tmp_path / "train.py"), f"{imported}\nmisc.init(args)\n")
    call = script.tree.body[-1].value  # type: ignore[attr-defined]
    assert sets_in_arguments(script, call) == {}


SCRIPT = """
    import misc


    def train_step(model, optimizer, batch):
        loss = model(batch)
        loss.backward()
        optimizer.step()


    def main(args):
        misc.init_distributed_mode(args, {})
        misc.prepare(args)
        model, optimizer = Model(), Optimizer()
        for epoch in range(2):
            READ
            for batch in range(args.size + order):
                train_step(model, optimizer, batch)


    main(parse())
"""


@pytest.mark.parametrize(
    ("read", "stays"),
    [
        ("order = 1 if args.distributed else 0", True),
        ("order = pick(args)", True),  # it may read anything of them
        ("order = pick(args.seed)", False),
    ],
)
def test_a_call_that_sets_what_the_loop_reads_stays(read: str, stays: bool, tmp_path: Path) -> None:
    (tmp_path / "misc.py").write_text(f"{MODULE}\ndef prepare(args):\n    args.port = 1\n")
    source = textwrap.dedent(SCRIPT).replace("READ", read)
    script = ScriptText(str(tmp_path / "train.py"), source)
    outer = [(" train_step(", "main"), ("main(parse", "<module>")]
    backward = frames(script, ("loss.backward", "train_step"), *outer)
    step = frames(script, ("optimizer.step", "train_step"), *outer)
    cut = data_slice(
        script, TrainingCalls(backward, (step,), ()), loss_slice(script, backward[0]), ["batch"]
    )
    assert ("misc.init_distributed_mode(args" in cut.text) == stays
    # The function that stays may itself read what another one sets.
    assert ("misc.prepare(args)" in cut.text) == stays


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ("mp.spawn(worker, args=(size, options), nprocs=1)", "worker(0, 7, options)"),
        ("mp.spawn(worker, (size, options), nprocs=1)", "worker(0, 7, options)"),
        ("launch(fn=worker, args=[2, options])", "worker(0, 7, options)"),
    ],
)
def test_what_a_launcher_hands_over_may_be_an_object(launch: str, expected: str) -> None:
    source = f"def worker(rank, size, options):\n    pass\n\n\n{launch}\n"
    called = Frame(2, "worker", 1, arguments=(("rank", 0), ("size", 7)))
    call = call_of(ScriptText("x.py", source), Frame(5, "<module>", 1), called)
    assert ast.unparse(call) == expected
