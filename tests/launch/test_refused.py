"""Planted mistakes in options: each is refused with one line that names the remedy; nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from migrate.cli import commands
from tests.launch.jobs import PROGRAMS, TARGETS

GOOD = {
    "--tpu": "v5e-16",
    "--zone": "us-central1-a",
    "--with": "gcloud",
    "--bucket": "gs://lab/run-1",
}
ARGS = ("--", "--run", "{checkpoints}")
PLAIN = "import torch_xla\ntorch_xla.launch(print)\n"
CUDA = "import torch\ntorch.zeros(3).cuda()\n"
JAX = "import jax\nimport orbax.checkpoint as ocp\nocp.CheckpointManager('x').restore(1)\n"
BOTH = "import jax\nimport torch_xla\n"
ALONE = "import torch_xla\nimport torch\nm.load_state_dict(torch.load('x'))\n"
TORCHRUN = ALONE + "import torch.distributed as d\nd.init_process_group('xla')\n"
TPU_PLAIN = "import torch_tpu\nimport torch.distributed as d\nd.init_process_group('tpu_dist')\n"
TPU = TPU_PLAIN + "import torch\nm.load_state_dict(torch.load('x'))\n"
TPU_ALONE = "import torch_tpu, torch\nm.load_state_dict(torch.load('x'))\n"
TPU_SPAWN = TPU + "import torch.multiprocessing as mp\nmp.spawn(print)\n"
V3 = {"--tpu": "v3-8"}

# What is changed, how the program reads (None: the good one), the arguments, what the line says.
MISTAKES = {
    "a size that nobody sells": ({"--tpu": "v5e-12"}, None, ARGS, "near: v5e-1, v5e-4, v5e-8, v5e-16"),
    "a generation that nobody sells": ({"--tpu": "v9-8"}, None, ARGS, "no such TPU slice; near:"),
    "two slices": ({"--tpu": "v5e-8,v6e-8"}, None, ARGS, "name one, such as"),
    "no zone": ({"--zone": None}, None, ARGS, "add --zone with one of: us-central1-a"),
    "a zone without this generation": (
        {"--zone": "us-east1-d"}, None, ARGS, "us-east1-d sells v6e; nearest: us-",
    ),
    "a zone without this size": (
        {"--tpu": "v3-32"}, None, ARGS, "no v3-32 is sold there; us-central1-a sells v2, v3",
    ),
    "a region as zone": ({"--zone": "us-central1"}, None, ARGS, "nearest: us-central1-a"),
    "no bucket": ({"--bucket": None}, None, ARGS, "add --bucket gs://"),
    "a local folder as bucket": ({"--bucket": "/data"}, None, ARGS, "write gs://BUCKET/FOLDER"),
    "a bucket without a folder": ({"--bucket": "gs://lab"}, None, ARGS, "gs://lab/run-1"),
    "a zone as the bucket's region": (
        {"--bucket-region": "us-central1-a"}, None, ARGS, "a zone without its last letter",
    ),
    "a wrong number of hosts": ({"--hosts": "8"}, None, ARGS, "with 8 hosts: v5e-32"),
    "no folder for checkpoints": ({}, None, (), "-- --checkpoint '{checkpoints}'"),
    "a script that does not resume": ({}, PLAIN, (), "--no-resume"),
    "a script of CUDA": ({}, CUDA, ARGS, "migrate rewrite train.py"),
    "two frameworks": ({}, BOTH, ARGS, "separate jobs"),
    "hosts that are not joined": ({}, JAX, ARGS, "jax.distributed.initialize"),
    "a script without ranks on several hosts": ({}, ALONE, ARGS, "start them by torch_xla.launch"),
    "torchrun on chips with two devices": (V3, TORCHRUN, ARGS, "slice of v4 or newer"),
    "torch_tpu: a script that does not resume": ({}, TPU_PLAIN, (), "--no-resume"),
    "torch_tpu: a script without a group on several hosts": (
        {}, TPU_ALONE, ARGS, "init_process_group('tpu_dist')",
    ),
    "torch_tpu: a script that spawns on several hosts": ({}, TPU_SPAWN, ARGS, "start to torchrun"),
    "torch_tpu: a generation that it does not know": (V3, TPU, ARGS, "or rewrite for torch_xla"),
    "data that nobody reads": ({"--data": "gs://lab/data"}, None, ARGS, "-- --data '{data}'"),
    "data on a disk": ({"--data": "/data"}, None, ARGS, "copy it to a bucket"),
    "data that is not named": ({}, None, (*ARGS, "{data}"), "add --data"),
    "a variable without a value": ({"--env": "FLAG"}, None, ARGS, "--env NAME=VALUE"),
    "a variable of the job": ({"--env": "PJRT_DEVICE=CPU"}, None, ARGS, "leave it out"),
    "a name with capitals": ({"--name": "My_Run"}, None, ARGS, "--name my-run"),
    "xpk without a cluster": ({"--with": "xpk"}, None, ARGS, "add --cluster"),
    "dstack with several hosts": ({"--with": "dstack"}, None, ARGS, "or --with skypilot"),
    "gcloud with TPU7x": (
        {"--tpu": "tpu7x-8", "--zone": "us-central1-c"}, None, ARGS, "use --with gke",
    ),
    "a grant without this zone": (
        {"--zone": "us-west4-a", "--trc": ""}, None, ARGS, "64 spot v5e chips in us-central1-a",
    ),
    "more chips than the grant": (
        {"--tpu": "v5e-128", "--trc": ""}, None, ARGS, "at most v5e with 64 chips",
    ),
    "an entry of a script": ({"--entry": "main.py"}, None, ARGS, "leave out --entry"),
}  # fmt: skip


# The same mistakes with the other kinds of program: those that do not change the program.
OF_OPTIONS = [name for name, (_, source, _, _) in MISTAKES.items() if source is None]
CASES = [
    *(("torch_xla", name) for name in MISTAKES),
    *(
        pytest.param(kind, name, marks=pytest.mark.long)
        for kind in ("torch_tpu", "jax")
        for name in OF_OPTIONS
        if kind != "jax" or name != "an entry of a script"  # the program is a folder
    ),
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_mistake_is_refused_with_the_remedy(kind: str, name: str, tmp_path: Path) -> None:
    changes, source, args, said = MISTAKES[name]
    script = TARGETS[kind]
    if source is not None:
        script = tmp_path / "train.py"
        script.write_text(source)
    words = ["launch", str(script), "-o", str(tmp_path / "job")]
    for option, value in (GOOD | changes).items():
        if value is not None:
            words += [option, value] if value else [option]
    done = CliRunner().invoke(commands, [*words, *args])
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith("migrate: ")
    assert said in line
    assert not (tmp_path / "job").exists()


def run(*words: str | Path) -> tuple[int, str]:
    options = [word for pair in GOOD.items() for word in pair]
    done = CliRunner().invoke(commands, ["launch", *options, *map(str, words), *ARGS])
    return done.exit_code, done.output


def test_a_folder_that_is_no_job_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    code, line = run(TARGETS["torch_xla"], "-o", tmp_path, "--force")
    assert (code, "is no job" in line) == (2, True)
    assert (tmp_path / "kept.txt").read_text() == "mine"


def test_a_job_is_replaced_only_when_asked(tmp_path: Path) -> None:
    output = tmp_path / "job"
    assert run(TARGETS["torch_xla"], "-o", output)[0] == 0
    code, line = run(TARGETS["torch_xla"], "-o", output)
    assert (code, "--force" in line) == (2, True)
    assert run(TARGETS["torch_xla"], "-o", output, "--force")[0] == 0


def test_far_data_is_a_warning_with_its_price(tmp_path: Path) -> None:
    code, text = run(TARGETS["torch_xla"], "-o", tmp_path / "a", "--bucket-region", "us-east1")
    assert code == 0
    assert "lies in us-east1, the slice in us-central1: up to 19 dollars per TB" in text
    code, text = run(TARGETS["torch_xla"], "-o", tmp_path / "b", "--bucket-region", "europe-west4")
    assert "19 dollars or more per TB" in text
    for near in ("us-central1", "US", "nam4"):
        code, text = run(TARGETS["torch_xla"], "-o", tmp_path / near, "--bucket-region", near)
        assert (code, "warning:" in text) == (0, False)


def test_a_grant_sets_zone_and_kind_and_says_what_is_billed(tmp_path: Path) -> None:
    words = ["launch", str(TARGETS["jax"]), "--tpu", "v6e-64", "--trc", "--with", "skypilot"]
    words += ["--bucket", "gs://lab/run-1", "-o", str(tmp_path / "job"), *ARGS]
    done = CliRunner().invoke(commands, words)
    assert done.exit_code == 0, done.output
    assert "v6e-64 in us-east1-d" in done.output
    assert "spot, by SkyPilot" in done.output
    assert "Billed: buckets and disks" in done.output


def test_programs_are_read_by_what_they_import() -> None:
    assert {path.name for path in PROGRAMS.iterdir() if path.name[0] != "_"} == {
        *("xla_script.py", "tpu_script.py", "jax_program"),
    }
