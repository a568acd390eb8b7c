import os
import subprocess
import sys
from pathlib import Path

import pytest

from shims import activate
from tests.waiting import LIMIT

pytestmark = pytest.mark.xla

PROGRAMS = Path(__file__).parent / "programs"


def run(
    program: Path, *args: str, replicas: int = 2, **more: str
) -> subprocess.CompletedProcess[str]:
    variables = activate.environment("simulate", replicas)
    return subprocess.run(
        [sys.executable, str(program), *args],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables, **more},
        capture_output=True,
        text=True,
        # Far beyond what these take: a run that hangs fails.
        timeout=LIMIT,
        check=False,
    )


# All that depends on the number: sub-groups of two need four.
@pytest.mark.parametrize("replicas", [pytest.param(2, marks=pytest.mark.long), 4])
def test_collectives_and_what_a_tpu_refuses(replicas: int, tmp_path: Path) -> None:
    done = run(PROGRAMS / "collectives.py", str(replicas), str(tmp_path), replicas=replicas)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"all collectives are right on {replicas} replicas" in done.stdout
    refused = {line.partition(":")[0] for line in done.stdout.splitlines()}
    assert {
        "refused nprocs",
        "refused ReduceOp.AVG",
        "refused BXOR",
        "refused BAND of float",
        "refused RedOpType.MAX of torch.int64",
        "refused half of an integer",
        "refused functional avg",
        "refused all_gather_object",
        "refused broadcast_object_list",
        "refused gather_object",
        "refused scatter_object_list",
        "refused splits",
        "refused xm.send",
        "refused xm.recv",
        "refused incomplete groups",
        "refused a replica twice",
        "refused a source twice",
        "refused all_reduce_coalesced",
        "refused _coalescing_manager",
        "refused nn.SyncBatchNorm",
    } <= refused
    assert "new_group(backend='gloo')" in done.stdout
    if replicas == 4:
        for name in (
            "reduce",
            "all_to_all",
            "all_to_all_single",
            "gather",
            "scatter",
            "send",
            "recv",
        ):
            assert f"refused {name} in [[0, 1], [2, 3]]" in refused
        assert "refused group [0, 2] without a mesh" in refused
        assert "should contain 4 replicas, but found 2" in done.stdout


def test_a_runtime_used_before_launch_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "early.py"
    script.write_text(
        "import torch, torch_xla\n"
        "def main(rank):\n    pass\n"
        "if __name__ == '__main__':\n"
        "    torch.ones(1, device='xla')\n"
        "    torch_xla.launch(main)\n"
    )
    done = run(script)
    assert done.returncode == 1
    assert "Runtime is already initialized" in done.stderr.splitlines()[-1]


@pytest.mark.long
def test_ddp_averages_as_its_reducer_does() -> None:
    done = run(PROGRAMS / "ddp_reducer.py")
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert [line for line in said if line.startswith("equal: ")] == [
        "equal: all parameters, 10 gradients",
        "equal: no_sync: nothing is averaged, 10 gradients",
        "equal: accumulated, then averaged, 10 gradients",
        # The branch of each replica, and what both use.
        "equal: unused parameters, 8 gradients",
        "equal: bfloat16, 10 gradients",
    ]
    (refused,) = [line for line in said if line.startswith("refused: ")]
    assert "Expected to have finished reduction in the prior iteration" in refused
    assert "others.1.weight, others.1.bias, others.2.weight, others.2.bias" in refused


def test_the_processes_of_torchrun_are_replicas(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, torch, torch_xla, torch.distributed as dist, torch_xla.runtime as xr\n"
        "import torch_xla.distributed.xla_backend\n"
        "def main(index, word):\n"
        "    dist.init_process_group('xla', init_method='xla://')\n"
        "    total = torch.ones(2, device='xla') * (xr.global_ordinal() + 1)\n"
        "    dist.all_reduce(total)\n"
        "    said = f'{word} {index} {dist.get_rank()} of {xr.world_size()}: {total.tolist()}'\n"
        "    sys.stdout.write(said + chr(10))\n"
        "if __name__ == '__main__':\n"
        "    torch_xla.launch(main, args=('replica',))\n"
    )
    start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    variables = activate.environment("simulate", 2)
    done = subprocess.run(
        [sys.executable, *start, str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # gloo writes lines of its own.
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("replica")) == [
        "replica 0 0 of 2: [3.0, 3.0]",
        "replica 1 1 of 2: [3.0, 3.0]",
    ]


@pytest.mark.long
def test_torchrun_on_several_machines_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch_xla\n")
    places = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    done = run(script, TORCHELASTIC_RUN_ID="1", **places)
    assert done.returncode == 1
    assert "simulated replicas are all on one machine" in done.stderr.splitlines()[-1]


@pytest.mark.long
def test_without_a_launch_there_is_one_replica(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text(
        "import torch, torch_xla, torch_xla.runtime as xr\n"
        "print(xr.world_size(), xr.global_ordinal(), torch.ones(2, device='xla').sum().item())\n"
    )
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "0", "2.0"]


@pytest.mark.long
def test_cuda_code_that_imports_torch_xla_first(tmp_path: Path) -> None:
    path = tmp_path / "first.py"
    path.write_text(
        "import torch_xla\nimport torch\nprint(torch.ones(2, device='cuda').sum().item())\n"
    )
    command = [sys.executable, "-m", "shims", "--ranks", "1", "--backend", "xla", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.stdout.splitlines()[-1:] == ["2.0"], done.stderr


@pytest.mark.long
def test_a_script_that_imports_torch_xla_late(tmp_path: Path) -> None:
    path = tmp_path / "late.py"
    path.write_text(
        "import sys\n"
        "\n"
        "\n"
        "def work(index):\n"
        "    import torch_xla.runtime as xr\n"
        "    sys.stdout.write(f'replica {index} of {xr.world_size()}\\n')\n"
        "\n"
        "\n"
        "if __name__ == '__main__':\n"
        "    import torch_xla\n"
        "\n"
        "    torch_xla.launch(work)\n"
    )
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **activate.environment("simulate", 2)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "replica 0 of 2" in done.stdout
    assert "replica 1 of 2" in done.stdout


@pytest.mark.long
def test_replicas_that_leave_with_status_0_come_to_their_end(tmp_path: Path) -> None:
    done = run(PROGRAMS / "leaving.py", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["replica0", "replica1"]


@pytest.mark.long
def test_replicas_find_no_address_of_torchrun_in_the_environment(tmp_path: Path) -> None:
    script = tmp_path / "address.py"
    script.write_text(
        "import os, sys, torch_xla, torch.distributed as dist\n"
        "import torch_xla.distributed.xla_backend\n"
        "def main(index):\n"
        "    dist.init_process_group('xla', init_method='xla://')\n"
        "    names = [name for name in ('MASTER_ADDR', 'MASTER_PORT') if name in os.environ]\n"
        "    sys.stdout.write(f'replica {index} of {dist.get_world_size()} has {names}\\n')\n"
        "if __name__ == '__main__':\n"
        "    torch_xla.launch(main)\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **activate.environment("simulate", 2)}
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("replica"))
    assert said == ["replica 0 of 2 has []", "replica 1 of 2 has []"]


def test_gradients_of_resized_images_are_computed_on_the_device() -> None:
    done = run(PROGRAMS / "resize.py", replicas=1)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 36
    assert [line for line in lines if not line.endswith(" is right")] == []
    assert "Warning" not in done.stderr


def test_sums_of_bfloat16_are_added_in_float32() -> None:
    done = run(PROGRAMS / "half_sums.py", replicas=1)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 18
    assert [line for line in lines if not line.endswith(" is right")] == []
    assert "Warning" not in done.stderr
