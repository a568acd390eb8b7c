"""What runs on some of the replicas only, and what runs on all of them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import libcst as cst
import pytest

from migrate.reading.replicas.first_replica import on_first
from migrate.reading.replicas.guards import Guard
from migrate.reading.script import Script
from migrate.syntax.source import parse
from migrate.syntax.tree import code, nodes_of

HEAD = """
import os
import torch
import torch.distributed as dist
import torch.distributed
import utils
from utils import is_main_process
"""


def around(script: str) -> Guard | None:
    """What guards the call of `here` in the script."""
    text = HEAD + textwrap.dedent(script).strip() + "\n"
    context = Script(parse(text.encode(), Path("script.py")))
    (call,) = [call for call in nodes_of(context.module, cst.Call) if code(call.func) == "here"]
    return context.guards.around(call)


@pytest.mark.parametrize(
    "test",
    [
        "rank == 0",
        "0 == rank",
        "gpu == 0",
        "not rank",
        "args.rank % ngpus_per_node == 0",
        "is_main_process()",
        "is_primary()",
        "utils.is_main_process()",
        "master_process",
        "iteration % 10 == 0 and master_process",
        "dist.get_rank() == 0",
        "torch.distributed.get_rank() == 0",
        "utils.get_rank() != 0",
        "not args.distributed or (args.distributed and args.rank % n == 0)",
        "not dist.is_initialized() or dist.get_rank() == 0",
        "self.gpu_id == 0",
        "self.is_master and epoch > 2",
        "int(os.environ['LOCAL_RANK']) == 0",
        "int(os.environ.get('RANK', 0)) == 0",
        "RANK in {-1, 0}",
        "local_rank not in [-1, 0]",
        "global_rank in (0,)",
        "rank < 2",
        "rank in (0, 1)",
        "rank < n",
        "rank % 2",
        "not rank % 2",
        "rank & 1",
        "rank // 8 == 0",
        "(rank + 1) % 2 == 0",
        "rank + 1 == world_size",
        "dist.get_rank() % 2 and n > 1",
        "0 < rank < 3",
        "xm.is_master_ordinal()",
        "opt['global_rank'] == 0",
        "self.opt['rank'] != 0",
        "cfg['train']['local_rank'] in (-1, 0)",
    ],
)
def test_asks_for_the_rank(test: str) -> None:
    guard = around(f"if {test}:\n    here()")
    assert isinstance(guard, cst.If)
    assert code(guard.test) == test
    assert around(f"if {test}:\n    pass\nelse:\n    here()") is not None


@pytest.mark.parametrize(
    "test",
    [
        "args.gpu is not None",
        "rank is None",
        "local_rank != -1",
        "args.rank == -1",
        "rank >= 0",
        "rank < 0",
        "rank in (-1,)",
        "args.gpu",
        "args.distributed",
        "dist.is_initialized()",
        "dist.get_world_size() > 1",
        "epoch == 0",
        "matrix_rank == 0",
        "torch.linalg.matrix_rank(x) == 3",
        "lora_rank == 0",
        "step % 2",
        "width % rank == 0",
        "step + 1 == n",
        "main",
        "args.master_addr",
        "os.environ['HOME'] == 'x'",
        "row['rank'] == 0",
        "cfg['lora_rank'] == 0",
        "cfg['rank'] is None",
    ],
)
def test_asks_for_something_else(test: str) -> None:
    assert around(f"if {test}:\n    here()") is None


def test_the_test_of_the_if_runs_everywhere() -> None:
    assert around("if here() and rank == 0:\n    pass") is None
    assert around("if epoch == 0 and here():\n    pass") is None


@pytest.mark.parametrize(
    "script",
    [
        "if rank == 0 and here():\n    pass",
        "rank == 0 and here()",
        "rank != 0 or here()",
        "done = here() if dist.get_rank() == 0 else None",
        "done = None if rank else here()",
        "while rank == 0:\n    here()\n    break",
        "match rank:\n    case 0:\n        here()",
    ],
)
def test_other_forms_of_a_test(script: str) -> None:
    guard = around(script)
    assert guard is not None
    assert not isinstance(guard, cst.If | cst.FunctionDef)


DECORATED = """
    def wrapped(function):
        def inner(*args):
            {test}
                return function(*args)
        return inner

    @{decorator}
    def save(model):
        here()

    save(1)
"""


@pytest.mark.parametrize(
    ("test", "decorator", "is_guarded"),
    [
        ("if dist.get_rank() == 0:", "wrapped", True),
        ("if True:", "wrapped", False),
        ("if True:", "utils.run_on_main", True),
        ("if True:", "utils.main_process_only", True),
        ("if True:", "hydra.main", False),
    ],
)
def test_a_decorator_that_lets_some_replicas_pass(
    test: str, decorator: str, is_guarded: bool
) -> None:
    guard = around(DECORATED.format(test=test, decorator=decorator))
    assert isinstance(guard, cst.FunctionDef) == is_guarded


def test_a_name_or_an_attribute_that_holds_the_outcome() -> None:
    script = """
        def work(rank):
            first = dist.get_rank() == 0
            if first:
                here()
    """
    assert around(script) is not None
    script = """
        class Trainer:
            def __init__(self, rank):
                self.speaks = rank == 0

            def save(self):
                if self.speaks:
                    here()
    """
    assert around(script) is not None
    assert around("def work(epoch):\n    first = epoch == 0\n    if first:\n        here()") is None


def test_a_function_that_compares_the_rank() -> None:
    script = """
        def speaks():
            return dist.get_rank() == 0

        if speaks():
            here()
    """
    assert around(script) is not None


def test_what_follows_an_early_leave() -> None:
    guard = around("def f(rank):\n    if rank != 0:\n        return\n    here()")
    assert isinstance(guard, cst.If)
    assert around("for x in y:\n    if not is_main_process():\n        continue\n    here()")
    assert around("def f(rank):\n    if rank != 0:\n        print(1)\n    here()") is None
    assert around("def f(rank):\n    here()\n    if rank != 0:\n        return") is None
    assert around("def f(x):\n    if x != 0:\n        return\n    here()") is None


def test_the_innermost_guard_comes_first() -> None:
    guard = around("if rank == 0:\n    if gpu == 1:\n        here()")
    assert isinstance(guard, cst.If)
    assert code(guard.test) == "gpu == 1"


def test_a_function_called_under_guards_only() -> None:
    helper = "def keep(state):\n    here()\n\n"
    guard = around(helper + "if rank == 0:\n    keep(1)")
    assert isinstance(guard, cst.FunctionDef)
    assert guard.name.value == "keep"
    assert around(helper + "keep(1)\nif rank == 0:\n    keep(1)") is None
    assert around(helper + "if rank == 0:\n    later = keep") is None
    assert around(helper) is None
    assert around("def keep(n):\n    here()\n    keep(n - 1)\n\n\nif rank == 0:\n    keep(1)")
    assert around("@rank_zero_only\ndef keep():\n    here()\n\n\nkeep()") is not None


def test_a_method_called_under_guards_only() -> None:
    script = """
        class Trainer:
            def _save(self):
                here()

            def train(self):
                if self.gpu_id == 0:
                    self._save()
    """
    assert isinstance(around(script), cst.FunctionDef)


@pytest.mark.parametrize(
    "bound",
    [
        "if ddp:\n    first = rank == 0\nelse:\n    rank, first = 0, True",
        "first = rank == 0 if ddp else True",
        "first = not dist.is_initialized() or dist.get_rank() == 0",
        "first = not rank",
        "first = is_main_process()",
    ],
)
def test_a_name_for_the_outcome_of_a_test_of_the_rank(bound: str) -> None:
    """`if ddp: first = rank == 0`, `else: first = True` was no test of the rank to us."""
    assert around(f"{bound}\nif first:\n    here()") is not None


def test_a_name_for_all_but_the_first_lets_not_the_first_pass() -> None:
    script = HEAD + "others = rank != 0\nif others:\n    here()\n"
    context = Script(parse(script.encode(), Path("script.py")))
    (test,) = [one.test for one in nodes_of(context.module, cst.If)]
    assert context.guards.asks(test)
    assert on_first(test, context) is None


MODULE = """
class Trainer:
    def __init__(self, model, cfg):
        self.ddp = {flag}
        self.model = torch.nn.parallel.DistributedDataParallel(model) if self.ddp else model
        self.master = dist.get_rank() == 0

    def evaluate(self):
        self.model.eval()
        self.model.{name}()

    def {name}(self):
        if self.ddp:
            here()
        if self.master:
            self.evaluate()
"""


@pytest.mark.parametrize("name", ["train", "step", "forward"])
@pytest.mark.parametrize(
    "flag",
    [
        'int(os.environ.get("RANK", -1)) != -1',
        'int(os.environ.get("RANK", "-1")) >= 0',
        '"RANK" in os.environ',
        'os.environ.get("RANK") is not None',
        'os.environ.get("RANK", "") != ""',
        'bool(os.environ.get("LOCAL_RANK"))',
        'os.environ.get("RANK")',
        'int(os.environ.get("WORLD_SIZE", 1)) > 1',
        "dist.is_available() and dist.is_initialized()",
    ],
)
def test_a_flag_for_several_processes_is_no_difference_and_a_module_has_methods_too(
    flag: str, name: str
) -> None:
    assert around(MODULE.format(flag=flag, name=name)) is None


@pytest.mark.parametrize(
    ("script", "guarded"),
    [
        # The method of the class itself, by self and by an object of it.
        (
            "class A:\n    def train(self):\n        here()\n\n    def go(self, rank):\n"
            "        if rank == 0:\n            self.train()\n",
            True,
        ),
        (
            "class A:\n    def train(self):\n        here()\n\n\na = A()\n"
            "if dist.get_rank() == 0:\n    a.train()\n",
            True,
        ),
        # A function, and a method of something else with its name.
        (
            "def train():\n    here()\n\n\ndef go(model, rank):\n"
            "    if rank == 0:\n        model.train()\n    train()\n",
            False,
        ),
        (
            "def train():\n    here()\n\n\ndef go(model, rank):\n"
            "    if rank == 0:\n        model.train()\n",
            False,
        ),
        # An option with the name of a method, and a method that goes where it may be called.
        (
            "class Options:\n    save: bool\n\n\nclass A:\n    def save(self):\n        here()\n\n"
            "    def go(self, rank):\n        chosen = self.options.save and rank == 0\n"
            "        if not self.options.save:\n            return\n"
            "        if chosen:\n            self.save()\n",
            True,
        ),
        (
            "class A:\n    def save(self):\n        here()\n\n    def go(self, rank, kept):\n"
            "        if rank == 0:\n            self.save()\n        at_the_end(kept.save or print)\n",
            False,
        ),
    ],
)
def test_whose_method_is_called(script: str, guarded: bool) -> None:
    assert (around(script) is not None) == guarded


@pytest.mark.parametrize(
    "test", ['int(os.environ.get("RANK", 0)) == 0', 'int(os.environ["RANK"]) > 0']
)
def test_the_number_in_the_environment_is_the_rank(test: str) -> None:
    assert around(f"if {test}:\n    here()\n") is not None


@pytest.mark.parametrize(
    ("test", "guarded"),
    [
        ("dist.get_rank() != 0", True),
        ("not is_main_process()", True),
        ("dist.get_rank() > 0", True),
        ("dist.get_rank() >= torch.cuda.device_count()", False),
        ("dist.get_rank() == 0 and not os.path.exists(path)", False),
        ("not dist.is_initialized()", False),
    ],
)
def test_what_follows_an_error_of_the_others_runs_on_the_first(test: str, guarded: bool) -> None:
    script = f"def save(path):\n    if {test}:\n        raise RuntimeError(path)\n    here()\n"
    assert (around(script) is not None) == guarded
