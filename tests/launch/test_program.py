"""What a program imports and calls decides how it is launched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from migrate.cli import commands
from migrate.launch.errors import JobError
from migrate.launch.framework import Framework
from migrate.launch.program import Resume, read_program
from migrate.launch.start import ProcessStart
from tests.launch.jobs import TARGETS, trained_program


def program(folder: Path, source: str, **modules: str):
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    script = folder / "train.py"
    script.write_text(source)
    return read_program(script)


@pytest.mark.parametrize(
    ("source", "framework"),
    [
        ("import torch_xla", Framework.TORCH_XLA),
        ("import torch_xla.core.xla_model as xm", Framework.TORCH_XLA),
        ("import shims", Framework.TORCH_XLA),
        ("from shims import resume", Framework.TORCH_XLA),
        ("import shims\nimport torch_tpu", Framework.TORCH_TPU),
        ("import torch\ntorch.zeros(1).to('tpu')", Framework.TORCH_TPU),
        (
            "import torch\nimport torch.distributed as d\nd.init_process_group('tpu_dist')",
            Framework.TORCH_TPU,
        ),
        ("import torch\ntorch.tpu.synchronize()", Framework.TORCH_TPU),
        ("import torch, shims\ntorch.zeros(1).to('tpu')", Framework.TORCH_TPU),
        ("import torch, shims\nshims.device_type() == 'tpu'", Framework.TORCH_XLA),
        ("import torch, shims\nNAMES = ['xla', 'tpu']", Framework.TORCH_XLA),
        ("import flax.linen as nn", Framework.JAX),
        ("import jax\nimport torch", Framework.JAX),
        ("def main():\n    import jax", Framework.JAX),
    ],
)
def test_the_framework(source: str, framework: Framework, tmp_path: Path) -> None:
    assert program(tmp_path, source).framework is framework


@pytest.mark.parametrize(
    ("source", "assumed"),
    [
        ("import torch\nprint('cpu', 'tpu')", "taken for a program of torch_tpu"),
        ("import torch\nimport torch_tpu\nprint('tpu')", ""),
        ("import torch\ntorch.tpu.synchronize()", ""),
        ("import jax\nimport orbax.checkpoint as ocp\nocp.M().restore(1)", "data's position"),
        ("import jax", ""),
    ],
)
def test_what_is_only_assumed_is_said(source: str, assumed: str, tmp_path: Path) -> None:
    lines = program(tmp_path, source).assumed
    assert len(lines) == bool(assumed)
    assert all(assumed in line for line in lines)


@pytest.mark.parametrize(
    ("source", "requirements", "missing"),
    [
        ("import jax, os, numpy\nfrom flax import linen", "", ""),
        ("import jax, torch", "", ""),
        ("import jax, no_such_package", "", "imports no_such_package, and"),
        ("import jax, no_such_package", "No.Such-Package==1\n", ""),
        ("import jax\ntry:\n    import no_such_package\nexcept ImportError: pass", "", ""),
        ("import torch_xla, jax_of_mine", "-r more.txt\n", ""),
    ],
)
def test_packages_that_no_host_would_have(
    source: str, requirements: str, missing: str, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text(requirements)
    lines = program(tmp_path, source).assumed
    assert len(lines) == bool(missing)
    assert all(missing in line for line in lines)


def test_a_program_of_migrate_train_restores_the_datas_position(tmp_path: Path) -> None:
    assert read_program(trained_program(tmp_path / "program")).assumed == ()


def test_modules_of_the_program_count_and_are_copied(tmp_path: Path) -> None:
    read = program(tmp_path, "import model", model="import jax", unused="import torch_xla")
    assert read.framework is Framework.JAX
    assert [path.name for path in read.files] == ["model.py", "train.py"]


GROUP = "import torch.distributed as dist\ndist.init_process_group('{}')\n"
SPAWN = "import torch.multiprocessing as mp\nmp.spawn(print)\n"
XMP = "import torch_xla.distributed.xla_multiprocessing as m\nm.spawn(print)"
MESH = "import torch_tpu\nfrom torch.distributed import init_device_mesh as m\nm('tpu', (4,))"
OPTION = "import argparse\nargparse.ArgumentParser().add_argument('--local_rank')\n"


@pytest.mark.parametrize(
    ("source", "start", "one_chip", "joins"),
    [
        ("import torch_xla\ntorch_xla.launch(print)", ProcessStart.HOST, False, True),
        (XMP, ProcessStart.HOST, False, True),
        ("from shims import launch as go\ngo(print)", ProcessStart.HOST, False, True),
        (
            "import torch_xla.runtime as xr\nxr.use_spmd()",
            ProcessStart.HOST,
            False,
            True,
        ),
        ("import torch_xla\n" + GROUP.format("xla"), ProcessStart.CHIP, False, True),
        (
            "import torch_xla\ndef launch(f): pass\nlaunch(print)",
            ProcessStart.HOST,
            True,
            False,
        ),
        ("import torch_tpu\n" + SPAWN, ProcessStart.HOST, False, False),
        (
            "import torch_tpu, os\nos.environ['HOST_INDEX']\n" + SPAWN,
            ProcessStart.HOST,
            False,
            True,
        ),
        (GROUP.format("tpu_dist"), ProcessStart.CHIP, False, True),
        (MESH, ProcessStart.CHIP, False, True),
        (
            "import shims, torch_tpu\nshims.launch(print)",
            ProcessStart.CHIP,
            False,
            True,
        ),
        ("import torch_tpu", ProcessStart.HOST, True, False),
        ("import jax", ProcessStart.HOST, False, False),
        ("import jax\njax.distributed.initialize()", ProcessStart.HOST, False, True),
    ],
)
def test_the_processes(
    source: str, start: ProcessStart, one_chip: bool, joins: bool, tmp_path: Path
) -> None:
    style = program(tmp_path, source).style
    assert (style.start, style.one_chip, style.joins_hosts) == (start, one_chip, joins)


def test_the_option_of_a_rank(tmp_path: Path) -> None:
    assert program(tmp_path, "import torch_tpu\n" + OPTION).style.option == "--local_rank"


@pytest.mark.parametrize(
    ("source", "resume"),
    [
        ("from shims import resume as keep\nkeep('x', model=1)", Resume.SHIMS),
        ("import shims\ndef resume(): pass\nresume()", Resume.NONE),
        (
            "import jax\nimport orbax.checkpoint as o\no.CheckpointManager('x').restore(1)",
            Resume.ORBAX,
        ),
        ("import jax\nimport orbax.checkpoint as o\no.CheckpointManager('x').save(1)", Resume.NONE),
        ("import torch_xla, torch\nm.load_state_dict(torch.load('x'))", Resume.OWN),
        ("import torch_xla, torch\ntorch.save(m.state_dict(), 'x')", Resume.NONE),
    ],
)
def test_resuming(source: str, resume: Resume, tmp_path: Path) -> None:
    assert program(tmp_path, source).resume is resume


def test_the_entry_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text("import jax")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x").write_text("")
    with pytest.raises(JobError, match="name the file to run: --entry FILE"):
        read_program(tmp_path)
    read = read_program(tmp_path, "fit.py")
    assert (read.entry, read.files) == (Path("fit.py"), (Path("fit.py"),))
    (tmp_path / "main.py").write_text("import jax")
    assert read_program(tmp_path).entry == Path("main.py")


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="is not a file or folder"):
        read_program(tmp_path / "nope.py")


def test_json_has_the_job_and_the_meaning_of_its_lines(tmp_path: Path) -> None:
    words = ["launch", str(TARGETS["jax"]), "--tpu", "v5e-1", "--zone", "us-central1-a"]
    words += ["--with", "dstack", "--bucket", "gs://lab/r", "-o", str(tmp_path / "job")]
    done = CliRunner().invoke(
        commands, [*words, "--json", "--explain", "--", "--run", "{checkpoints}"]
    )
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)
    assert values["framework"] == "jax"
    assert values["hosts"] == 1
    assert values["commands"]["create"].endswith("dstack apply -f train.dstack.yml --detach")
    assert values["meanings"]["train.dstack.yml"][0]["text"] == "A program that runs to its end."
