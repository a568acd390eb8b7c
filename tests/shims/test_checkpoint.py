from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from shims._saved import atomic
from shims.checkpoint import CheckpointError, load, save
from tests.waiting import LIMIT

# A Python in which torch_xla cannot be imported, and the shims are not used.
PLAIN = "import sys; sys.modules['torch_xla'] = None; sys.modules['shims'] = None\n"


class Point(NamedTuple):
    x: int
    y: int


def python(code: str, *args: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PJRT_DEVICE": "CPU"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer, object]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
    for _ in range(3):
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        scheduler.step()
    return model, optimizer, scheduler


@pytest.mark.parametrize("where", ["{folder}/run.pt", "memory://checkpoints/{name}/run.pt"])
def test_a_whole_training_state_comes_back(where: str, tmp_path: Path) -> None:
    path = where.format(folder=tmp_path, name=tmp_path.name)
    model, optimizer, scheduler = trained()
    scaler = torch.amp.GradScaler("cpu")
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),  # type: ignore[attr-defined]
        "scaler": scaler.state_dict(),
        "history": [(1, 0.5), (2, float("inf"))],
        "best": np.float64(0.25),
        "shape": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "half": torch.arange(3, dtype=torch.bfloat16) / 3,
        3: None,
    }
    save(state, path)
    back = load(path)
    assert list(back) == list(state)
    assert back["model"]._metadata == state["model"]._metadata
    assert back["best"] == 0.25
    assert type(back["best"]) is float
    assert back["half"].dtype is torch.bfloat16
    torch.testing.assert_close(back["half"], state["half"], rtol=0, atol=0)
    for name in ("history", "scheduler", "scaler", "shape", "dtype"):
        assert back[name] == state[name]
    again, other, _ = trained()
    again.load_state_dict(back["model"])
    other.load_state_dict(back["optimizer"])
    for mine, theirs in zip(model.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    save(state, path)  # what is there is replaced
    folder, _, _name = path.rpartition("/")
    assert atomic.names_in(folder) == ["run.pt"]


def test_ties_and_views_are_kept(tmp_path: Path) -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    parameter = torch.nn.Parameter(torch.ones(2))
    save([weight, weight, weight[1], weight.t(), parameter, parameter], tmp_path / "tied.pt")
    one, two, row, flipped, first, second = load(tmp_path / "tied.pt")
    assert one is two
    assert first is second
    assert isinstance(first, torch.nn.Parameter)
    assert one.requires_grad
    with torch.no_grad():
        one[1, 2] = 7.0
    assert row[2] == 7.0
    assert flipped[2, 1] == 7.0


def test_saving_changes_nothing_in_the_original(tmp_path: Path) -> None:
    model, _, _ = trained()
    weight = next(model.parameters())
    before = (weight.requires_grad, weight.grad, weight.detach().clone())
    save(list(model.parameters()), tmp_path / "x.pt")
    assert weight.requires_grad is before[0]
    assert weight.grad is before[1]
    assert torch.equal(weight.detach(), before[2])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (argparse.Namespace(lr=1), r"checkpoint\['a'\]\[1\] is a argparse.Namespace.*vars"),
        (torch.nn.Linear(1, 1), r"Linear, which a checkpoint cannot hold; store its state_dict"),
        (np.ones(2), r"numpy.ndarray.*from_numpy"),
        (Path("x"), r"Path.*str"),
        (Point(1, 2), r"_asdict"),
        (torch.empty(1, device="meta"), r"meta device"),
        ({(1, Path("x")): 1}, r"a key of"),
        (len, r"builtin_function_or_method"),
    ],
)
def test_what_only_code_could_restore_is_refused(
    entry: object, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        save({"a": [0, entry]}, tmp_path / "x.pt")
    assert list(tmp_path.iterdir()) == []


def test_loading_runs_no_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "made"),)

    torch.save({"a": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pt", "evil.pkl"):
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            load(tmp_path / name)
    assert not (tmp_path / "made").exists()


def test_broken_and_missing_files_are_named(tmp_path: Path) -> None:
    save(torch.ones(1000), tmp_path / "good.pt")
    whole = (tmp_path / "good.pt").read_bytes()
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.pt").write_bytes(whole[:cut])
        with pytest.raises(CheckpointError, match=r"cut\.pt cannot be loaded"):
            load(tmp_path / "cut.pt")
    with pytest.raises(atomic.FileError, match=r"none\.pt cannot be read"):
        load(tmp_path / "none.pt")
    with pytest.raises(atomic.FileError, match=r"x\.pt cannot be written"):
        save(1, tmp_path / "none" / "x.pt")
    with pytest.raises(atomic.FileError, match="cannot be read"):
        load("memory://nowhere/x.pt")


@pytest.mark.parametrize("where", ["{folder}", "memory://interrupted/{name}"])
def test_an_interrupted_write_leaves_the_old_file(where: str, tmp_path: Path) -> None:
    folder = where.format(folder=tmp_path, name=tmp_path.name)
    atomic.make_folder(folder)
    save("old", f"{folder}/x.pt")

    def interrupted() -> None:
        with atomic.atomic_write(f"{folder}/x.pt") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert load(f"{folder}/x.pt") == "old"
    assert atomic.names_in(folder) == ["x.pt"]


def test_a_killed_writer_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    code = """
        import os, sys
        from shims._saved import atomic
        with atomic.atomic_write(sys.argv[1]) as file:
            file.write(b"half"); file.flush()
            os.kill(os.getpid(), 9)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "x.pt")], check=False
    )
    assert done.returncode == -9
    (left,) = atomic.names_in(tmp_path)
    assert atomic.is_temporary(left)


@pytest.mark.xla
def test_written_on_xla_loaded_on_the_cpu_and_back(tmp_path: Path) -> None:
    python(
        """
        import sys, torch, torch_xla
        from shims.checkpoint import save
        torch.manual_seed(0)
        encoder, decoder = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        model = torch.nn.Sequential(encoder, decoder).to(torch.bfloat16).to("xla")
        decoder.weight = encoder.weight
        with torch.no_grad():
            # Pending, not yet run: save has to run it.
            encoder.weight.copy_(torch.arange(16.0).reshape(4, 4))
        weight = encoder.weight.detach()
        import torch_xla.core.xla_model as xm
        before = xm.get_rng_state()
        ended = []
        xm.add_step_closure(ended.append, (1,))
        save({"model": model.state_dict(), "top": weight[:2], "bottom": weight[2:],
              "turned": weight.t()}, sys.argv[1])
        # Neither a step's end nor a draw.
        assert xm.get_rng_state() == before and not ended
        """,
        tmp_path / "x.pt",
    )
    loaded = python(
        PLAIN
        + textwrap.dedent(
            """
            import torch
            state = torch.load(sys.argv[1], weights_only=True)
            model = state["model"]
            first, second = model["0.weight"], model["1.weight"]
            print(first.device, first.dtype, first.data_ptr() == second.data_ptr())
            print(first.flatten().tolist(), state["top"].flatten().tolist())
            print(state["bottom"].flatten().tolist(), state["turned"][0].tolist())
            model["0.weight"] += 1
            torch.save(model, sys.argv[1])
            """
        ),
        tmp_path / "x.pt",
    ).splitlines()
    assert loaded[0] == "cpu torch.bfloat16 True"
    numbers = [float(n) for n in range(16)]
    assert loaded[1] == f"{numbers} {numbers[:8]}"
    assert loaded[2] == f"{numbers[8:]} {[0.0, 4.0, 8.0, 12.0]}"
    back = python(
        """
        import sys, torch, torch_xla
        from shims.checkpoint import load
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        model = model.to(torch.bfloat16).to("xla")
        model.load_state_dict(load(sys.argv[1]))
        print(model[1].weight.device.type, model[1].weight.flatten().tolist())
        """,
        tmp_path / "x.pt",
    )
    assert back.strip() == f"xla {[n + 1 for n in numbers]}"


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.long_cases("True")
def test_two_ranks_write_once_and_do_not_wait(guarded: bool, tmp_path: Path) -> None:
    code = """
        import os, sys, torch, torch.distributed as dist
        from shims.checkpoint import save
        rank, guarded, path, store = int(sys.argv[1]), sys.argv[2] == "True", *sys.argv[3:]
        dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{store}")
        if rank == 0 or not guarded:
            save({"rank": rank}, path)
        dist.barrier()
        print(os.listdir(os.path.dirname(path)))
        dist.destroy_process_group()
    """
    folder = tmp_path / "out"
    folder.mkdir()
    paths = [str(folder / "x.pt"), str(tmp_path / "store")]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(rank), str(guarded), *paths],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in ranks:
        assert process.communicate(timeout=LIMIT)[0].splitlines()[-1] == "['x.pt']"
        assert process.returncode == 0
    assert load(folder / "x.pt") == {"rank": 0}
