import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from shims.__main__ import main
from shims._started.script import Start, find_start
from tests.waiting import LIMIT

PROGRAMS = Path(__file__).parent / "programs"


def shims(folder: Path, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shims", *args],
        env={**os.environ, "OMP_NUM_THREADS": "1", **more},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def written(folder: Path, source: str) -> Path:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(source))
    return script


@pytest.mark.parametrize(
    ("source", "start"),
    [
        ("import os; rank = int(os.environ['RANK'])", Start("environment")),
        ("import os; rank = os.getenv('LOCAL_RANK', -1)", Start("environment")),
        ("p.add_argument('--local_rank', type=int)", Start("option", "--local_rank")),
        ("p.add_argument('-l', '--local-rank')", Start("option", "--local-rank")),
        ("import os; os.environ['RANK'] = '0'; mp.spawn(f)", Start("spawn")),
        (
            "p.add_argument('--local_rank')\nif __name__ == '__main__':\n    mp.spawn(f)",
            Start("spawn"),
        ),
        (
            "if __name__ == '__main__':\n    if 'RANK' in os.environ: sys.exit(f(0))\n    mp.spawn(f)",
            Start("environment"),
        ),
        ("dist.init_process_group('nccl')", Start("environment")),
        ("mp.Process(target=f); dist.init_process_group('nccl', rank=r)", Start("spawn")),
        ("mp.Process(target=f); dist.init_process_group('nccl')", Start("environment")),
        ("import torch", Start("alone")),
        ("this does not parse", Start("alone")),
    ],
)
def test_how_a_script_starts(source: str, start: Start, tmp_path: Path) -> None:
    assert find_start(written(tmp_path, source)) == start


def test_local_imports_are_read(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("from . import setup")
    (tmp_path / "lib" / "setup.py").write_text("import os\nrank = os.environ['RANK']\n")
    assert find_start(written(tmp_path, "import lib")) == Start("environment")


def test_modules_on_the_python_path_are_read(tmp_path: Path) -> None:
    (tmp_path / "project" / "lib").mkdir(parents=True)
    (tmp_path / "project" / "lib" / "__init__.py").write_text("")
    (tmp_path / "project" / "lib" / "setup.py").write_text("from . import ranks")
    (tmp_path / "project" / "lib" / "ranks.py").write_text("dist.init_process_group('nccl')")
    (tmp_path / "scripts").mkdir()
    script = written(tmp_path / "scripts", "from lib import setup")
    assert find_start(script) == Start("alone")
    path = [str(tmp_path / "project")]
    assert find_start(script, path) == Start("environment")
    (tmp_path / "project" / "lib-1.0.dist-info").mkdir()
    assert find_start(script, path) == Start("alone")


def test_what_the_shims_themselves_name_is_no_sign(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    script = written(tmp_path, "import shims.auto")
    assert find_start(script, [str(root)]) == Start("alone")


@pytest.mark.long
def test_collectives_for_nccl_in_two_ranks(tmp_path: Path) -> None:
    done = shims(
        tmp_path, "--ranks", "2", "--backend", "cpu", str(PROGRAMS / "nccl_collectives.py"), "."
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2 is right" in done.stdout
    assert "rank 1 of 2 is right" in done.stdout


def test_spawned_ranks_and_the_call_log(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        """\
        import sys, torch
        import torch.multiprocessing as mp

        def main(rank, size):
            torch.cuda.set_device(rank)
            sys.stdout.write(f"sum {torch.ones(2).cuda().sum().item()} {rank} {size}\\n")

        if __name__ == "__main__":
            mp.spawn(main, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
        """,
    )
    done = shims(
        tmp_path, "--ranks=2", "--backend=cpu", str(script), MIGRATE_SHIMS_LOG=str(tmp_path / "log")
    )
    assert done.returncode == 0, done.stderr
    assert {"sum 2.0 0 2", "sum 2.0 1 2"} <= set(done.stdout.splitlines())
    logs = [file.read_text() for file in tmp_path.glob("log*")]
    assert len(logs) == 3
    report = "".join(logs)
    assert f"{script}:9: torch.cuda.device_count (2 times): the number of ranks" in report
    assert f"{script}:6: Tensor.cuda (1 time): on cpu" in report
    assert f"{script}:5: torch.cuda.set_device (1 time)" in report


def test_the_option_of_torch_distributed_launch(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        """\
        import argparse, os, sys
        parser = argparse.ArgumentParser()
        parser.add_argument("--local_rank", type=int)
        parser.add_argument("--lr", type=float)
        args = parser.parse_args()
        assert args.local_rank == int(os.environ["LOCAL_RANK"])
        sys.stdout.write(f"rank {args.local_rank} {args.lr}\\n")
        """,
    )
    done = shims(tmp_path, "--ranks", "2", "--backend", "cpu", str(script), "--lr", "0.5")
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == {"rank 0 0.5", "rank 1 0.5"}


def test_a_failing_rank_ends_the_others(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        """\
        import os, sys, time
        if os.environ["RANK"] == "1":
            sys.exit(7)
        time.sleep(600)
        """,
    )
    done = shims(tmp_path, "--ranks", "2", "--backend", "cpu", str(script))
    assert done.returncode == 7
    assert "rank 1 of 2 failed (exit code 7); all were ended" in done.stderr


def test_its_traceback_is_shown(tmp_path: Path) -> None:
    script = written(
        tmp_path, "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('no')"
    )
    done = shims(tmp_path, "--ranks", "2", "--backend", "cpu", str(script))
    assert done.returncode == 1
    assert "ValueError: no" in done.stderr


@pytest.mark.parametrize(
    ("args", "environment", "message"),
    [
        (["missing.py"], {}, "missing.py is not a file"),
        (["--ranks", "0", "train.py"], {}, "0 replicas requested"),
        (["train.py"], {"MIGRATE_BACKEND": "gpu"}, "MIGRATE_BACKEND='gpu' is unknown"),
    ],
)
def test_bad_input_is_one_line(
    args: list[str], environment: dict[str, str], message: str, tmp_path: Path
) -> None:
    written(tmp_path, "")
    done = shims(tmp_path, *args, **environment)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_one_import_does_the_same(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        """\
        import shims.auto
        import torch
        import torch.multiprocessing as mp

        def main(rank):
            print("child", torch.ones(1, device="cuda").device)

        if __name__ == "__main__":
            print("parent", torch.cuda.device_count())
            mp.spawn(main, nprocs=1)
        """,
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "MIGRATE_BACKEND": "cpu"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["parent 1", "child cuda:0"]


def test_wrong_flags_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--ranks", "abc", "train.py"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("shims: argument --ranks: invalid int value: 'abc'")
