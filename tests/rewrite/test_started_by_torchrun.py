"""Tests whether torchrun started the program: in a launched replica they would say no."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.report.text.folder import folder_summary
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse

SCRIPT = """\
import os

import torch
import torch.distributed as dist


def setup(args):
    {body}


def main(args):
    setup(args)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())


if __name__ == "__main__":
    main(type("Options", (), {{}}))
"""
ALONE = """{test}:
        os.environ["RANK"] = "0"
        os.environ["WORLD_SIZE"] = "1"
    dist.init_process_group("nccl")"""
TOGETHER = """{test}:
        args.rank, args.distributed = int(os.environ["RANK"]), True
        dist.init_process_group("nccl")
    else:
        args.rank, args.distributed = 0, False"""


def rewritten(body: str, style: str = "native") -> Rewrite:
    text = SCRIPT.format(body=body)
    options = RewriteOptions(style="portable" if style == "portable" else "native")
    return rewrite_source(parse(text.encode(), Path("script.py")), options=options)


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('if "MASTER_ADDR" not in os.environ', 'if "RANK" not in os.environ'),
        ("if not 'MASTER_PORT' in os.environ", "if not 'RANK' in os.environ"),
        ('if os.environ.get("MASTER_ADDR") is None', 'if os.environ.get("RANK") is None'),
        ('if not os.getenv("TORCHELASTIC_RUN_ID")', 'if not os.getenv("RANK")'),
        ("if not dist.is_torchelastic_launched()", 'if "RANK" not in os.environ'),
        (
            'if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ',
            'if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ',
        ),
        (
            'if not ("RANK" in os.environ and "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ)',
            'if not ("RANK" in os.environ and "WORLD_SIZE" in os.environ and "LOCAL_RANK" in os.environ)',
        ),
    ],
)
def test_a_branch_for_one_process_is_not_taken_in_a_replica(
    before: str, after: str, style: str
) -> None:
    done = rewritten(ALONE.format(test=before), style)
    assert after in done.data.decode()
    assert (
        rewrite_source(parse(done.data, Path("script.py"))).data == done.data or style != "native"
    )


@pytest.mark.parametrize(
    "test", ['if "MASTER_ADDR" in os.environ', 'if os.environ.get("GROUP_RANK")']
)
def test_the_branch_for_replicas_is_taken(test: str) -> None:
    text = rewritten(TOGETHER.format(test=test)).data.decode()
    assert "MASTER_ADDR" not in text
    assert "GROUP_RANK" not in text


def test_names_that_are_asked_for_in_turn_are_reported() -> None:
    test = 'if not all(name in os.environ for name in ("RANK", "MASTER_ADDR"))'
    done = rewritten(ALONE.format(test=test))
    assert [note.rule for note in done.findings].count("started-by-torchrun") == 1


@pytest.mark.parametrize(
    "body",
    [
        'if "TORCHELASTIC_RESTART_COUNT" in os.environ:\n        print("again")',
        'if "MASTER_ADDR" in os.environ:\n        print(os.environ["MASTER_ADDR"])',
        'print(os.environ.get("MASTER_ADDR", "none"))',
        'args.host = os.environ["MASTER_ADDR"] if "MASTER_ADDR" in os.environ else "here"',
    ],
)
def test_other_questions_stay(body: str) -> None:
    done = rewritten(f'{body}\n    dist.init_process_group("nccl")')
    assert body in done.data.decode()
    assert not [note for note in done.findings if note.rule == "started-by-torchrun"]


def test_in_another_file(tmp_path: Path) -> None:
    helper = "import os\n\nimport torch.distributed as dist\n\n\ndef setup(args):\n    "
    (tmp_path / "ranks.py").write_text(
        helper + ALONE.format(test='if "MASTER_ADDR" not in os.environ') + "\n"
    )
    (tmp_path / "train.py").write_text(
        SCRIPT.format(body="ranks.setup(args)").replace(
            "import torch\n", "import torch\n\nimport ranks\n", 1
        )
    )
    done = rewrite_folder(tmp_path, options=RewriteOptions(), processes=1)
    text = next(file for file in done.files if file.name == Path("ranks.py")).after.decode()
    assert 'if "RANK" not in os.environ' in text


SPAWNING = """\
import os

import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank):
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group("nccl", rank=rank, world_size=2)


if __name__ == "__main__":
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29500"
    mp.spawn(worker, nprocs=2)
"""


def test_an_address_that_decides_in_processes_of_the_script_is_kept_and_reported() -> None:
    done = rewrite_source(parse(SPAWNING.encode(), Path("script.py")))
    assert 'os.environ["MASTER_ADDR"] = "localhost"' in done.data.decode()
    assert any("MASTER_ADDR is also read" in note.message for note in done.findings)


COUNTED = """\
import os

import torch
import torch.distributed as dist

NAMES = {names}


class Environment:
    def __init__(self):
        self.collected = {{}}
{body}


def collect():
    return {{name: os.environ[name] for name in NAMES if name in os.environ}}


def main():
    Environment()
    dist.init_process_group("nccl")
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())


if __name__ == "__main__":
    main()
"""
ALL_OF_THEM = '("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")'
FROM_NAMES = "{n: os.environ[n] for n in NAMES if n in os.environ}"


def counted(body: str, names: str = ALL_OF_THEM) -> list[str]:
    text = COUNTED.format(
        names=names, body=textwrap.indent(textwrap.dedent(body), " " * 8).rstrip()
    )
    done = rewrite_source(parse(text.encode(), Path("script.py")))
    return [note.message for note in done.findings if note.rule == "started-by-torchrun"]


@pytest.mark.parametrize(
    "names",
    [
        ALL_OF_THEM,
        '["RANK", "WORLD_SIZE", "MASTER_ADDR"]',
        '{"RANK", "MASTER_PORT"}',
        'frozenset(["RANK", "TORCHELASTIC_RUN_ID"])',
    ],
)
@pytest.mark.parametrize(
    "body",
    [
        f"found = {FROM_NAMES}\nif found and len(found) != len(NAMES):\n    raise RuntimeError(found)",
        f"self.collected = {FROM_NAMES}\nif len(self.collected) == len(NAMES):\n    self.ready = True",
        "found = collect()\nif not found:\n    pass\nelif len(found) == 5:\n    self.ready = True",
        "if len(collect()) < len(NAMES):\n    raise RuntimeError('partly set')",
        "if sum(n in os.environ for n in sorted(NAMES)) not in (0, 5):\n    raise RuntimeError",
        "if all(os.environ.get(n) for n in NAMES):\n    self.ready = True",
        "ready = all([n in os.environ for n in NAMES])\nassert ready, 'start it by torchrun'",
        "if set(NAMES) <= set(os.environ):\n    self.ready = True",
        "missing = set(NAMES) - os.environ.keys()\nif missing:\n    raise RuntimeError(missing)",
        "if set(NAMES).issubset(os.environ):\n    self.ready = True",
        "for n in NAMES:\n    if n not in os.environ:\n        raise RuntimeError(n)",
        "lost = []\nfor n in NAMES:\n    if not os.getenv(n):\n        lost.append(n)\nif lost:\n    exit(1)",
        "values = [os.environ[n] for n in NAMES]\nself.rank = values[-1]",
    ],
)
def test_a_count_of_the_variables_that_are_set_is_reported(body: str, names: str) -> None:
    # `collect` is called, so that its own answer counts only where a test asks for it.
    told = counted(f"print(collect())\n{body}", names)
    assert len(told) == 1
    assert "sets none of these" in told[0]


@pytest.mark.parametrize(
    "body",
    [
        f"print({FROM_NAMES})",
        f"self.shown = {FROM_NAMES}\nprint(self.shown)",
        "for n in NAMES:\n    print(n, os.environ.get(n))",
        "for n in NAMES:\n    if n not in os.environ:\n        os.environ[n] = '0'",
    ],
)
def test_variables_that_are_only_shown_or_set_are_not_reported(body: str) -> None:
    assert counted(f"print(collect())\n{body}") == []


def test_a_list_of_what_the_launcher_sets_is_not_reported() -> None:
    body = f"found = {FROM_NAMES}\nif len(found) != len(NAMES):\n    raise RuntimeError(found)"
    assert counted(body, '("RANK", "WORLD_SIZE", "LOCAL_RANK")') == []


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ('"""Train.\n\n    torchrun --nproc-per-node 4 train.py\n"""\n', 3),
        ("# python -m torch.distributed.launch --nproc_per_node=4 train.py\n", 1),
        ("NAME = 'torchrun'  # of the cluster\n", 0),
        ("", 0),
    ],
)
@pytest.mark.parametrize("guard", ["if __name__ == '__main__':\n    main(None)\n", "main(None)\n"])
def test_a_text_that_says_torchrun_stays_and_is_reported(said: str, line: int, guard: str) -> None:
    script = SCRIPT.format(body='dist.init_process_group("nccl")').partition("if __name__")[0]
    done = rewrite_source(parse(f"{said}{script}{guard}".encode(), Path("train.py")))
    (launch,) = [edit for edit in done.edits if "starts them" in edit.message]
    assert ("start it with python" in launch.message) == (line > 0)
    assert f"(line {line})" in launch.message or not line
    assert said in done.data.decode()


def test_a_folder_says_so_too(tmp_path: Path) -> None:
    body = SCRIPT.format(body='dist.init_process_group("nccl")')
    (tmp_path / "train.py").write_text(f'"""torchrun --nproc-per-node 4 train.py"""\n{body}')
    (line,) = [
        line
        for line in folder_summary(rewrite_folder(tmp_path), None)
        if isinstance(line, str) and "torchrun" in line
    ]
    assert (
        line
        == "train.py: start it with python: torchrun (line 1) is no longer needed, and still works"
    )
