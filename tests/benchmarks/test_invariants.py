"""The invariants of `benchmarks/strangers.py`: each sees what breaks it, and no more than that."""

from pathlib import Path
from textwrap import dedent

import pytest

from benchmarks.invariants import (
    Code,
    Pair,
    attributes_read,
    compiles,
    cuda_left,
    numbers_lost,
    steps_in_steps,
    unbound,
    under_a_rank,
    unresolved,
)
from tests.frameworks import need_torch_xla

NAME = Path("train.py")


def code(text: str, name: Path = NAME) -> Code:
    return Code(name, dedent(text).lstrip("\n").encode())


def pair(before: str, after: str, *, found=(), checked=(), name: Path = NAME) -> Pair:
    return Pair(code(before, name), code(after, name), found, checked)


def lines(broken) -> list[int]:
    return [one.line for one in broken]


def left(text: str, **more) -> list[int]:
    one = pair(text, text, **more)
    return lines(cuda_left(one, attributes_read([one.after])))


CUDA = {
    "a call": "import torch\ntorch.cuda.synchronize()\n",
    "a method": "model = Model()\nmodel.cuda()\n",
    "a backend": "import torch.distributed as dist\ndist.init_process_group('nccl')\n",
    "a device": "import torch\nx = torch.zeros(2, device='cuda:0')\n",
    "another name": "from torch import cuda\ncuda.empty_cache()\n",
    "an exit is no word about CUDA": "import sys\nif device != 'cuda':\n    sys.exit('needs CUDA')\n",
    "a branch that does more": "import sys\nif device != 'cuda':\n    train()\n",
}


@pytest.mark.parametrize("text", CUDA.values(), ids=CUDA)
def test_cuda_that_is_left(text: str) -> None:
    assert left(text) == [2]


@pytest.mark.parametrize("text", CUDA.values(), ids=CUDA)
def test_what_is_said_is_not_left(text: str) -> None:
    assert left(text, found=[2]) == []
    assert left(text, checked=[2]) == []


WITHOUT = {
    "documentation": '"""Runs on cuda."""\n',
    "an annotation": "import torch\ndef f(e: torch.cuda.Event) -> torch.cuda.Event: ...\n",
    "a scaler that is off": "import torch\ns = torch.cuda.amp.GradScaler(enabled=False)\n",
    "an entry that is read": 'jobs[f"cuda:{i}"].append(1)\n',
    "the class of that scaler": "import torch\nok = isinstance(s, torch.cuda.amp.GradScaler)\n",
    "pinned memory": "pin_memory = device == 'cuda'\n",
    "for memory alone": "on_gpu = device == 'cuda'\nload(data, non_blocking=on_gpu)\n",
    "it only says so": "if device != 'cuda':\n    print('no fp8 without CUDA')\n",
    "taken out of a text": "index = name.replace('cuda:', '')\n",
    "a stand-in of tests": "from unittest import mock\nmock.patch('torch.cuda.is_available')\n",
    "one by its own name": "from unittest.mock import patch\npatch('torch.cuda.set_device')\n",
    "an option that nothing reads": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--backend', default='nccl')\n"
    ),
    "what CUDA has where it is": (
        "import torch\nmemory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0\n"
    ),
}


@pytest.mark.parametrize("text", WITHOUT.values(), ids=WITHOUT)
def test_what_names_cuda_and_does_nothing(text: str) -> None:
    assert left(text) == []


def test_an_option_that_is_read_counts() -> None:
    text = WITHOUT["an option that nothing reads"] + "print(p.parse_args().backend)\n"
    assert left(text) == [3]


UNGUARDED = "import torch_xla.core.xla_model as xm\nxm.save(state, path)\n"
GUARDED = """
    import torch_xla.core.xla_model as xm
    if rank == 0:
        xm.save(state, path)
"""
RANKS = {
    "below a test": (GUARDED, [3]),
    "on the other side": (
        """
        import torch_xla.core.xla_model as xm
        if rank != 0:
            pass
        else:
            xm.rendezvous('end')
        """,
        [5],
    ),
    "after one that leaves": (
        """
        import torch_xla.core.xla_model as xm
        def store(state):
            if not is_main_process():
                return
            xm.save(state, 'x')
        """,
        [5],
    ),
    "a save that waits for nobody": (
        """
        import torch_xla
        import torch_xla.core.xla_model as xm
        def store(state):
            torch_xla.sync()
            if not is_main_process():
                return
            xm.save(state, 'x', master_only=False)
        """,
        [],
    ),
    "a save of what is pending": (
        """
        import torch_xla.core.xla_model as xm
        def store(state):
            if is_main_process():
                xm.save(state, 'x', master_only=False)
        """,
        [4],
    ),
    "in a called function": (
        """
        import torch_xla.core.xla_model as xm
        def store(state):
            xm.save(state, 'x')
        if rank == 0:
            store(state)
        """,
        [5],
    ),
    "by a decorator": (
        """
        import torch_xla.core.xla_model as xm
        @main_process_only
        def store(state):
            xm.save(state, 'x')
        """,
        [4],
    ),
    "on both sides": (
        """
        import torch.distributed as dist
        if rank == 0:
            dist.broadcast(x, 0)
        else:
            dist.broadcast(y, 0)
        """,
        [],
    ),
    "whether there are ranks": (
        """
        import torch.distributed as dist
        if args.local_rank != -1:
            dist.barrier()
        """,
        [],
    ),
    "a function that is only defined": (
        """
        import torch.distributed as dist
        if rank == 0:
            def wait():
                dist.barrier()
        """,
        [],
    ),
}


@pytest.mark.parametrize(("after", "expected"), RANKS.values(), ids=RANKS)
def test_collectives_below_a_test_of_the_rank(after: str, expected: list[int]) -> None:
    assert lines(under_a_rank([pair("x = 1\n", after)])) == expected


def test_a_collective_that_the_original_guards_is_not_ours() -> None:
    theirs = GUARDED.replace("torch_xla.core.xla_model", "torch.distributed").replace(
        "xm.save(state, path)", "xm.barrier()"
    )
    assert lines(under_a_rank([pair(theirs, theirs)])) == []
    assert lines(under_a_rank([pair(UNGUARDED, GUARDED)])) == [3]
    assert lines(under_a_rank([pair(UNGUARDED, GUARDED, checked=[3])])) == []


def test_a_collective_in_a_function_of_another_file() -> None:
    cluster = "import torch_xla.core.xla_model as xm\ndef keep(state):\n    xm.save(state, 'x')\n"
    train = "from cluster import keep\nif env.is_chief:\n    keep(state)\n"
    pairs = [
        pair("x = 1\n", cluster, name=Path("cluster.py")),
        pair("x = 1\n", train, name=NAME),
    ]
    assert [(one.file, one.line) for one in under_a_rank(pairs)] == [("train.py", 3)]


def test_numbers_that_became_devices() -> None:
    assert lines(numbers_lost(pair("best_acc = 0\n", "best_acc = 'xla'\n"))) == [1]
    assert lines(numbers_lost(pair("gpu = 0\n", "gpu = 'xla'\n"))) == []
    assert lines(numbers_lost(pair("name = 'cuda'\n", "name = 'xla'\n"))) == []


NAMES = {
    "bound below a test, read without it": (
        "if rank == 0:\n    path = make()\n    save(path)\n",
        "if rank == 0:\n    path = make()\nsave(path)\n",
        [3],
    ),
    "bound nowhere": ("x = make()\nsave(x)\n", "save(x)\n", [1]),
    "as the original has it": (
        "if rank == 0:\n    path = make()\nprint(1)\nsave(path)\n",
        "if rank == 0:\n    path = make()\nsave(path)\n",
        [],
    ),
    "read below the same test": (
        "if rank == 0:\n    path = make()\n    save(path)\n",
        "if rank == 0:\n    path = make()\nprint(1)\nif rank == 0:\n    save(path)\n",
        [],
    ),
}


def test_names_without_a_value(tmp_path: Path) -> None:
    head = "from shop import make, rank, save\ndef main():\n"
    silent, told, expected = [], [], []
    for number, (before, after, at) in enumerate(NAMES.values()):
        one, other = (
            head + "".join(f"    {line}\n" for line in text.splitlines())
            for text in (before, after)
        )
        name = Path(f"case_{number}.py")
        at = [line + 2 for line in at]
        silent.append(pair(one, other, name=name))
        told.append(pair(one, other, checked=at, name=name))
        expected += [(str(name), line) for line in at]
    broken = unbound(silent, tmp_path / "silent", tmp_path / "cache")
    assert sorted((one.file, one.line) for one in broken) == sorted(expected)
    assert not list(unbound(told, tmp_path / "told", tmp_path / "cache"))


def test_imports_that_nothing_answers() -> None:
    after = """
        import no_such_package
        import torch_xla.core.xla_model as xm
        from .helpers import there, gone
        xm.no_such_word()
    """
    helpers = pair("there = 1\n", "there = 1\n", name=Path("helpers.py"))
    expected = [1, 3]
    need_torch_xla()
    assert lines(unresolved([helpers, pair("x = 1\n", after)])) == [*expected, 4]
    same = pair("import no_such_package\n", "import no_such_package\n")
    assert lines(unresolved([same])) == []


def test_files_that_no_longer_compile() -> None:
    assert compiles(NAME, b"x = 1\n", b"x = = 1\n").line == 1
    assert compiles(NAME, b"x = 1\n", b"x = 2\n") is None
    assert compiles(NAME, b"print 1\n", b"print 1\n") is None


def test_a_step_in_a_step_is_broken() -> None:
    around = "import torch_xla\nwith torch_xla.step():\n"
    inner = "    with torch_xla.step():\n        loss()\n"
    assert lines(steps_in_steps(pair("loss()\n", f"{around}    pass\n{inner}"))) == [4]
    assert lines(steps_in_steps(pair("loss()\n", f"{around}    pass\n"))) == []
    assert (
        lines(
            steps_in_steps(
                pair("loss()\n", f"{around}    def one():\n{inner.replace('    ', ' ' * 8)}")
            )
        )
        == []
    )
