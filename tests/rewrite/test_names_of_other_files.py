"""Names of torch that a file reaches through modules of its project: `comm.barrier`, `comm.dist.barrier`."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.check.config import Config
from migrate.rewrite.check_findings import check_and_mend
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.results import FolderRewrite

COMM = """
    import torch
    import torch.distributed as dist
    from torch.distributed import barrier
    from torch.distributed import barrier as meet
    from torch.cuda import synchronize


    def get_rank():
        return dist.get_rank()
"""
STYLES: tuple[Style, ...] = ("native", "portable")
MEETS = {"native": "xm.rendezvous(", "portable": "shims.barrier()"}


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / (name.replace("__", "/", 1) + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text).lstrip())


def rewritten(folder: Path, style: Style = "native", **files: str) -> dict[str, str]:
    write(folder, **files)
    return texts(folder, style)


def done(folder: Path, style: Style = "native") -> FolderRewrite:
    return rewrite_folder(folder, options=RewriteOptions(style=style), processes=1)


def texts(folder: Path, style: Style) -> dict[str, str]:
    files = {path.stem: path.read_text() for path in folder.rglob("*.py")}
    for file in done(folder, style).files:
        files[file.name.stem] = (file.after or b"").decode()
    return files


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "text",
    [
        "import comm\n\ncomm.barrier()\n",
        "import comm as c\n\nc.dist.barrier()\n",
        "from comm import barrier\n\nbarrier()\n",
        "from comm import meet as wait\n\nwait()\n",
        "from comm import dist\n\n\ndef main():\n    dist.barrier()\n",
        "import comm\n\ncomm.torch.distributed.barrier()\n",
        "from comm import *\n\nbarrier()\n",
        "import chain\n\nchain.barrier()\n",
        "import chain\n\nchain.comm.dist.barrier()\n",
        "from chain import *\n\ncomm.barrier()\n",
        "import pkg\n\npkg.barrier()\n",
        "import pkg.inner\n\npkg.inner.tdist.barrier()\n",
        "from pkg import inner\n\ninner.tdist.barrier()\n",
    ],
)
def test_a_barrier_of_another_file(tmp_path: Path, style: Style, text: str) -> None:
    files = rewritten(
        tmp_path,
        style,
        comm=COMM,
        chain="import comm\nfrom comm import *\n",
        pkg____init__="from .inner import *\n",
        pkg__inner="import torch.distributed as tdist\nfrom torch.distributed import barrier\n",
        train=text,
    )
    assert MEETS[style] in files["train"]


@pytest.mark.parametrize("style", STYLES)
def test_collectives_of_another_file(tmp_path: Path, style: Style) -> None:
    train = """
        import comm


        def main(t, names):
            comm.dist.all_reduce(t, op=comm.dist.ReduceOp.AVG)
            comm.dist.all_gather_object(names, "x")
    """
    text = rewritten(tmp_path, style, comm=COMM, train=train)["train"]
    assert "ReduceOp.AVG" not in text
    assert ("group=gloo_group()" if style == "native" else "shims.all_gather_object(") in text


def test_the_fallback_of_an_import(tmp_path: Path) -> None:
    comm = """
        try:
            from torch.distributed import barrier
        except ImportError:
            def barrier():
                pass
    """
    files = rewritten(tmp_path, comm=comm, train="import comm\n\ncomm.barrier()\n")
    assert "xm.rendezvous(" in files["train"]
    assert not [finding for file in done(tmp_path).files for finding in file.findings]


@pytest.mark.parametrize(
    "comm",
    [
        "def barrier():\n    pass\n",
        "from torch.distributed import barrier\n\n\ndef barrier():\n    pass\n",
        "from torch.distributed import barrier\n\nbarrier = print\n",
        "from threading import Barrier as barrier\n",
    ],
)
def test_a_barrier_of_the_projects_own(tmp_path: Path, comm: str) -> None:
    train = "import comm\n\n\ndef main():\n    comm.barrier()\n"
    assert rewritten(tmp_path, comm=comm, train=train)["train"] == train


def test_the_imports_that_others_take_stay(tmp_path: Path) -> None:
    comm = """
        import torch.distributed as dist
        from torch.distributed import barrier


        def start():
            dist.barrier()
            barrier()
    """
    train = "import comm\n\n\ndef size():\n    return comm.dist.get_world_size()\n"
    text = rewritten(tmp_path, comm=comm, train=train)["comm"]
    assert "import torch.distributed as dist\n" in text
    assert "from torch.distributed import barrier\n" not in text


def test_an_import_that_runs_code_stays(tmp_path: Path) -> None:
    comm = 'import os\nfrom torch.distributed import barrier\n\nos.environ["LEVEL"] = "1"\n'
    train = "from comm import barrier\n\nbarrier()\n"
    assert "from comm import barrier\n" in rewritten(tmp_path, comm=comm, train=train)["train"]


def test_files_that_import_each_other(tmp_path: Path) -> None:
    first = (
        "import second\nfrom second import barrier\n\n\ndef main():\n    second.first.barrier()\n"
    )
    second = "import first\nfrom torch.distributed import barrier\n"
    assert "xm.rendezvous(" in rewritten(tmp_path, first=first, second=second)["first"]


def test_check_sees_them(tmp_path: Path) -> None:
    train = "import comm\n\n\ndef main():\n    comm.barrier()\n    comm.synchronize()\n"
    start = "\n\ndef start():\n    dist.init_process_group('xla')\n"
    write(tmp_path, train=train)
    (tmp_path / "comm.py").write_text(dedent(COMM).lstrip() + start)
    for path in (tmp_path, tmp_path / "train.py"):
        found = check_and_mend([path], Config()).findings
        assert ("train.py", 5, "XLA306") in {(f.path.name, f.line, f.code) for f in found}


@pytest.mark.parametrize("style", STYLES)
def test_nothing_is_said_of_a_test_for_the_module(tmp_path: Path, style: Style) -> None:
    one = """
        try:
            import torch.distributed as dist
            from torch.distributed import barrier
        except ImportError:
            dist = barrier = None


        def is_distributed(others):
            if None is barrier or not dist or (others and dist):
                print(bool(dist))
            return dist is not None
    """
    write(tmp_path, one=one)
    assert not [finding for file in done(tmp_path, style).files for finding in file.findings]
