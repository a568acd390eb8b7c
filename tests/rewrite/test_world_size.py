"""The number of processes: taken out where it can be, reported where the script goes on using it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.engine import Rewrite, rewrite_source
from migrate.rewrite.source import parse

SCRIPT = """
import torch
import torch.multiprocessing as mp
import torch.distributed as dist

{before}


def worker({parameters}):
    {body}


if __name__ == "__main__":
    {main}
"""


def run(parameters: str, body: str, main: str, before: str = "") -> Rewrite:
    def indented(text: str) -> str:
        return text.replace("\n", "\n    ")

    filled = SCRIPT.format(
        parameters=parameters,
        body=indented(body),
        main=indented(main),
        before=textwrap.dedent(before),
    )
    done = rewrite_source(parse(filled.encode(), Path("script.py")))
    compile(done.data, "script.py", "exec")
    return done


COUNTED = "n = torch.cuda.device_count()\n"


@pytest.mark.parametrize(
    ("parameters", "body", "main", "signature", "launch"),
    [
        ("rank, n", "print(n)", COUNTED + "mp.spawn(worker, (n,), n)", "rank", "(worker, ())"),
        (
            "rank, a, n, *, b=1",
            "print(a, n)",
            COUNTED + "mp.spawn(worker, args=(3, n), nprocs=n)",
            "rank, a, *, b=1",
            "(worker, args=(3,))",
        ),
        (
            "rank, n: int, a",
            "print(a, n)",
            COUNTED + "mp.spawn(worker, args=[n, 3], nprocs=n, join=True, daemon=False)",
            "rank, a",
            "(worker, args=[3])",
        ),
        (
            "rank, n, a",
            "print(a, n)",
            "mp.spawn(nprocs=torch.cuda.device_count(), fn=worker, args=(torch.cuda.device_count(), 3))",
            "rank, a",
            "(fn=worker, args=(3,))",
        ),
    ],
)
def test_asked_by_the_worker(
    parameters: str, body: str, main: str, signature: str, launch: str
) -> None:
    done = run(parameters, body, main)
    text = done.data.decode()
    assert f"def worker({signature}):\n    n = xr.world_size()\n" in text
    assert f"    torch_xla.launch{launch}\n" in text
    assert "device_count" not in text
    assert done.findings == ()


def test_a_use_in_a_nested_function_counts() -> None:
    body = "def show():\n    print(n)\nshow()"
    done = run("rank, n", body, COUNTED + "mp.spawn(worker, args=(n,), nprocs=n)")
    assert "n = xr.world_size()" in done.data.decode()


def test_no_statement_where_only_the_rendezvous_used_it() -> None:
    body = 'dist.init_process_group("nccl", rank=rank, world_size=n)'
    text = run("rank, n", body, COUNTED + "mp.spawn(worker, args=(n,), nprocs=n)").data.decode()
    assert "world_size()" not in text
    assert "torch_xla.runtime" not in text
    assert 'def worker(rank):\n    dist.init_process_group("xla"' in text


def test_a_worker_that_is_also_called_keeps_its_signature() -> None:
    main = COUNTED + "mp.spawn(worker, args=(n,), nprocs=n)\nworker(0, 1)"
    done = run("rank, n", "print(n)", main)
    assert "def worker(rank, n):" in done.data.decode()
    assert "torch_xla.launch(worker, args=(n,))" in done.data.decode()
    assert any("the worker receives `n`" in note.message for note in done.findings)


@pytest.mark.parametrize(
    ("parameters", "body", "main", "before"),
    [
        ("rank", "sample(N)", "mp.spawn(worker, nprocs=N)", "N = 2"),
        ("rank, n", "sample(n)", "mp.spawn(worker, args=(2,), nprocs=2)", ""),
        ("rank, args", "sample(args.n)", "mp.spawn(worker, args=(args,), nprocs=args.n)", ""),
        ("rank", "pass", COUNTED + 'mp.spawn(worker, nprocs=n)\nprint(f"{n} GPUs")', ""),
    ],
)
def test_other_uses_are_reported(parameters: str, body: str, main: str, before: str) -> None:
    done = run(parameters, body, main, before)
    assert any("torch_xla.runtime.world_size()" in note.message for note in done.findings)


def test_rpc_is_left_alone() -> None:
    body = "torch.distributed.rpc.init_rpc('worker', rank=rank)"
    before = "import os\nos.environ['MASTER_ADDR'] = 'localhost'"
    done = run("rank", body, "mp.spawn(worker, nprocs=2)", before)
    assert not done.changed
    assert {note.rule for note in done.findings} == {"mp-spawn", "rendezvous-address", "unhandled"}
