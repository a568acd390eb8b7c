"""A checkpoint of one side continues in the other, and what goes wrong there is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.errors import CheckpointPlaceError, NotWrittenError, OriginalFailedError
from migrate.prove.proof import prove
from migrate.prove.resume import FORWARD, REVERSE, ResumeProof, prove_resuming
from migrate.prove.settings import Settings
from tests.waiting import LIMIT

SCRIPT = """
import os
import torch
import torch.nn as nn

def train(device):
    torch.manual_seed(1)
    data = torch.randn(8, 6, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first = 0
    if os.path.exists('snapshot.pt'):
        kept = torch.load('snapshot.pt', map_location='cpu')
        model.load_state_dict(kept['model'])
        OPTIMIZER
        first = kept['epoch']
    for epoch in range(first, 3):
        for x in data[:3] + epoch:
            optimizer.zero_grad()
            model(x.to(device)).square().mean().backward()
            optimizer.step()
            SYNC
        SAVE
"""
LOAD = "optimizer.load_state_dict(kept['optimizer'])"
STATE = "{'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'epoch': epoch + 1}"
SAVE = f"torch.save({STATE}, 'snapshot.pt')"
XM_SAVE = f"xm.save({STATE}, 'snapshot.pt')"
SETTINGS = Settings(timeout=LIMIT)


def written(
    folder: Path,
    *,
    before: tuple[str, str] = (LOAD, SAVE),
    after: tuple[str, str] = (LOAD, XM_SAVE),
) -> tuple[Path, Path]:
    scripts = []
    for name, (load, save), start, sync in (
        ("train.py", before, "train('cuda')\n", "pass"),
        ("train_xla.py", after, "train('xla')\n", "torch_xla.sync()"),
    ):
        text = SCRIPT.replace("OPTIMIZER", load).replace("SAVE", save).replace("SYNC", sync)
        head = "" if name == "train.py" else "import torch_xla, torch_xla.core.xla_model as xm\n"
        (folder / name).write_text(f"{head}{text}{start}")
        scripts.append(folder / name)
    return scripts[0], scripts[1]


def resumed(scripts: tuple[Path, Path], settings: Settings = SETTINGS) -> ResumeProof:
    return prove_resuming(*scripts, [], Path("snapshot.pt"), replicas=1, settings=settings)


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.long
def test_both_directions(tmp_path: Path) -> None:
    scripts = written(tmp_path)
    proof = resumed(scripts)
    assert [(one.name, one.proof.verdict) for one in proof.directions] == [
        (FORWARD, ProofVerdict.MATCH),
        (REVERSE, ProofVerdict.MATCH),
    ], [one.proof.message for one in proof.directions]
    assert proof.equal
    # One epoch of three was done before the checkpoint.
    assert [len(one.proof.steps) for one in proof.directions] == [6, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py", "train_xla.py"]


@pytest.mark.long
def test_a_file_that_is_there_is_the_start(tmp_path: Path) -> None:
    scripts = written(tmp_path)
    namespace: dict[str, object] = {}
    exec(
        scripts[0].read_text().replace("'cuda'", "'cpu'").replace("range(first, 3)", "[0]"),
        namespace,
    )
    assert Path("snapshot.pt").exists()
    before = Path("snapshot.pt").read_bytes()
    proof = resumed(scripts, Settings(timeout=LIMIT, steps=2))
    assert proof.equal, [one.proof.message for one in proof.directions]
    assert [len(one.proof.steps) for one in proof.directions] == [2, 2]
    assert Path("snapshot.pt").read_bytes() == before


@pytest.mark.long
def test_a_rewrite_that_forgets_the_optimizer(tmp_path: Path) -> None:
    forward, reverse = resumed(written(tmp_path, after=("pass", XM_SAVE))).directions
    assert forward.proof.verdict is ProofVerdict.DIFFERS
    assert "step 1" in forward.proof.message
    assert reverse.proof.verdict is ProofVerdict.MATCH


@pytest.mark.long
def test_a_rewrite_whose_file_the_original_cannot_load(tmp_path: Path) -> None:
    other = XM_SAVE.replace("'optimizer':", "'optim':")
    forward, reverse = resumed(written(tmp_path, after=(LOAD, other))).directions
    assert forward.proof.verdict is ProofVerdict.MATCH
    assert reverse.proof.verdict is ProofVerdict.CANNOT_RESUME
    assert reverse.proof.message == (
        "the original cannot start from snapshot.pt as the rewrite wrote it: KeyError: 'optimizer'"
    )


@pytest.mark.long
def test_a_rewrite_that_cannot_load_the_originals_file_nor_write_one(tmp_path: Path) -> None:
    load = LOAD.replace("'optimizer'", "'optim'")
    forward, reverse = resumed(written(tmp_path, after=(load, "pass"))).directions
    assert forward.proof.message == (
        "the rewrite cannot start from snapshot.pt as the original wrote it: KeyError: 'optim'"
    )
    assert "the rewrite ended without writing snapshot.pt" in reverse.proof.message


def test_a_script_that_does_not_read_its_file(tmp_path: Path) -> None:
    scripts = written(tmp_path)
    text = scripts[0].read_text()
    scripts[0].write_text(text.replace("exists('snapshot.pt')", "exists('other.pt')"))
    (direction,) = resumed(scripts).directions
    assert direction.proof.verdict is ProofVerdict.VACUOUS
    assert "the original does not read snapshot.pt" in direction.proof.message


@pytest.mark.long
def test_a_script_that_never_writes_it(tmp_path: Path) -> None:
    with pytest.raises(NotWrittenError, match=r"the original ended without writing snapshot\.pt"):
        resumed(written(tmp_path, before=(LOAD, "pass")))


@pytest.mark.long
def test_an_original_that_cannot_read_its_own_file(tmp_path: Path) -> None:
    scripts = written(tmp_path, before=("kept['optim']", SAVE))
    with pytest.raises(
        OriginalFailedError,
        match=r"cannot resume from its own checkpoint, snapshot.pt: KeyError: 'optim'",
    ):
        resumed(scripts)


def test_a_file_that_existed_before_is_not_called_the_originals(tmp_path: Path) -> None:
    torch.save({"epoch": 1}, "snapshot.pt")
    with pytest.raises(
        OriginalFailedError,
        match=r"from a checkpoint that existed before, snapshot.pt: KeyError: 'model'",
    ) as raised:
        resumed(written(tmp_path))
    assert "move it away" in raised.value.remedy


@pytest.mark.long
def test_the_empty_state_of_a_disabled_scaler_has_an_advice(tmp_path: Path) -> None:
    scaler = "torch.amp.GradScaler('cpu', enabled={})"
    load = f"{LOAD}; {scaler.format(True)}.load_state_dict(kept['scaler'])"
    sides = [
        STATE.replace("{", f"{{'scaler': {scaler.format(enabled)}.state_dict(), ")
        for enabled in (True, False)
    ]
    saves = (f"torch.save({sides[0]}, 'snapshot.pt')", f"xm.save({sides[1]}, 'snapshot.pt')")
    scripts = written(tmp_path, before=(load, saves[0]), after=(LOAD, saves[1]))
    forward, reverse = resumed(scripts).directions
    assert forward.proof.verdict is ProofVerdict.MATCH
    assert reverse.proof.verdict is ProofVerdict.CANNOT_RESUME
    assert "GradScaler; bfloat16 needs no scaler" in reverse.proof.message


def test_a_file_outside_of_the_project(tmp_path: Path) -> None:
    scripts = written(tmp_path)
    with pytest.raises(
        CheckpointPlaceError, match="is outside of the folders that each run copies"
    ):
        prove_resuming(*scripts, [], Path("/nowhere/snapshot.pt"), replicas=1, settings=SETTINGS)


@pytest.mark.long
def test_a_script_that_resumes_does_not_meet_the_other_sides_file(tmp_path: Path) -> None:
    proof = prove(*written(tmp_path), replicas=1, settings=SETTINGS)
    assert proof.verdict is ProofVerdict.MATCH, proof.message
    assert len(proof.steps) == 9


@pytest.mark.long
def test_the_transformer_with_all_its_state() -> None:
    # Moving average, schedule, scaler, two ranks; what tells it to resume is an argument.
    folder = Path(__file__).parents[2] / "examples" / "transformer"
    proof = prove_resuming(
        folder / "before.py",
        folder / "after.py",
        ["--save", "last.pt", "--examples", "64"],
        Path("last.pt"),
        resume_args=["--resume", "last.pt"],
        settings=Settings(amp="off", steps=2, timeout=LIMIT),
    )
    forward, reverse = (one.proof for one in proof.directions)
    assert forward.verdict is ProofVerdict.MATCH, forward.message
    # The rewrite scales no loss, but keeps the scaler's state for the original.
    assert reverse.verdict is ProofVerdict.MATCH, reverse.message
