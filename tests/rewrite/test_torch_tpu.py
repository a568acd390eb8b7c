"""What `--target torch_tpu` makes of the scripts of all rules and hazards."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from migrate.catalogue import catalogue
from migrate.catalogue.target import TPU
from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.check.rules import all_hazards
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.rewrite.rules import all_rules
from migrate.syntax.source import parse

OPTIONS = RewriteOptions(config=Config(target=TPU))
XLA = re.compile(r"xla", re.IGNORECASE)
SCRIPTS = sorted(
    {
        *(e.before for rule in all_rules() if not rule.notebook for e in rule.examples),
        *(e.script for hazard in all_hazards() for e in hazard.examples),
    }
)
CUDA_SCRIPTS = [
    script
    for script in SCRIPTS
    if not XLA.search(re.sub(r"# XLA\d+.*", "", script)) and "shims" not in script
]


@functools.cache
def run(script: str) -> Rewrite:
    return rewrite_source(parse(script.encode(), Path("script.py")), options=OPTIONS)


@pytest.mark.parametrize("part", range(8))
def test_a_second_run_changes_nothing(part: int) -> None:
    for script in SCRIPTS[part::8]:
        again = rewrite_source(parse(run(script).data, Path("script.py")), options=OPTIONS)
        assert not again.edits, script


@pytest.mark.parametrize("part", range(8))
def test_neither_code_nor_messages_speak_of_torch_xla(part: int) -> None:
    for script in CUDA_SCRIPTS[part::8]:
        done = run(script)
        assert not XLA.search(re.sub(r"# XLA\d+.*", "", done.data.decode())), script
        for note in (*done.edits, *done.findings, *done.hints):
            text = re.sub(r"# XLA\d+", "", f"{note.message} {note.wrong}")
            assert not XLA.search(text), (note, script)
            assert "failed here" not in note.message, (note, script)


def test_every_name_of_cuda_has_an_entry() -> None:
    missing = [
        name
        for name in catalogue.NAMES
        if name.startswith("torch.cuda.") and catalogue.of(name, TPU) is None
    ]
    assert not missing


ROOT = Path(__file__).parents[2]
# Its launch forks a file that runs while it is read: reported, and left.
LEFT = "launch_module"
REWRITTEN = sorted(path for path in (ROOT / "examples").glob("launch_*/after.py"))


@pytest.mark.parametrize("path", REWRITTEN, ids=lambda path: path.parent.name)
def test_what_the_rewrite_for_torch_xla_writes_moves_to_torch_tpu(path: Path) -> None:
    done = rewrite_source(parse(path.read_bytes(), path), options=OPTIONS)
    left = [note for note in done.findings if note.severity is not Severity.INFO]
    if path.parent.name == LEFT:
        assert "launch-from-xla" in {note.rule for note in left}
        return
    assert not left
    assert b"xla" not in done.data
    assert b"set_tpu_launch_env" in done.data


def test_a_mesh_and_a_generator_change_their_device() -> None:
    script = """\
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cuda", (4,))
generator = torch.Generator("cuda").manual_seed(0)
fully_shard(torch.nn.Linear(2, 2), mesh=mesh)
"""
    done = run(script)
    assert done.data.decode() == script.replace('"cuda"', '"tpu"')
    assert not done.findings


def test_saves_and_evaluation_stay_below_their_rank_test() -> None:
    script = """\
import torch
import torch.distributed as dist


def finish(model, batch, path):
    if dist.get_rank() == 0:
        print(model.module(batch).mean().item())
        torch.save(model.state_dict(), path)
"""
    done = run(script)
    assert done.data.decode() == script
    assert not done.findings
