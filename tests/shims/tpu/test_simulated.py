"""Programs written for torch_tpu on a simulated TPU, against the same on the CPU and gloo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from shims import activate
from shims._simulated_tpu.variables import AUTOLOAD
from tests.waiting import LIMIT

pytestmark = pytest.mark.torch_tpu

PROGRAMS = Path(__file__).parent / "programs"
PORTABLE = Path(__file__).parents[3] / "examples" / "portable" / "train.py"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone")


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def trained(program: str, device: str, folder: Path) -> dict[str, Any]:
    out = folder / f"{device}.pt"
    variables = activate.environment("simulate-tpu", 2) if device == "tpu" else {}
    done = run(*TORCHRUN, str(PROGRAMS / program), device, str(out), **variables)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = torch.load(out)
    return result


def test_fsdp2_and_dtensor_train_as_over_gloo(tmp_path: Path) -> None:
    want, got = (trained("sharded.py", device, tmp_path) for device in ("cpu", "tpu"))
    for name in ("fsdp", "tensor parallel"):
        assert got[name] == pytest.approx(want[name], rel=1e-5)
    torch.testing.assert_close(got["weight"], want["weight"], rtol=1e-5, atol=1e-6)
    for name in ("product", "replicated"):
        assert torch.equal(got[name], want[name])


def test_attention_differs_where_a_gradient_is_rounding_noise_only(tmp_path: Path) -> None:
    want, got = (trained("attention.py", device, tmp_path) for device in ("cpu", "tpu"))
    assert got["losses"] == pytest.approx(want["losses"], rel=1e-6)
    distances = {
        name: float((got["weights"][name] - weight).norm() / weight.norm())
        for name, weight in want["weights"].items()
    }
    # Softmax does not depend on the bias of the keys; AdamW makes steps of the noise.
    assert want["gradients"]["key.bias"].norm() < 1e-6 * want["gradients"]["query.bias"].norm()
    del distances["key.bias"]
    assert max(distances.values()) < 1e-5, distances


def test_portable_scripts_run_under_torchrun_and_spawned(tmp_path: Path) -> None:
    arguments = (str(PORTABLE), "--epochs", "1", "--checkpoint")
    starts = {
        "cpu": ((), {"MIGRATE_BACKEND": "cpu", "MIGRATE_RANKS": "2"}),
        # torch loads torch_tpu by itself, with libtpu, in the process that starts the ranks.
        "spawned": (
            (),
            {
                "MIGRATE_BACKEND": "tpu",
                "MIGRATE_RANKS": "2",
                "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
            },
        ),
        "torchrun": (TORCHRUN, {"MIGRATE_BACKEND": "tpu", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
    }
    results = {}
    for name, (launcher, variables) in starts.items():
        path = tmp_path / f"{name}.pt"
        done = run(*launcher, *arguments, str(path), **variables)
        assert done.returncode == 0, done.stderr
        results[name] = torch.load(path)
    for name in ("spawned", "torchrun"):
        losses = torch.tensor(results[name]["history"])
        assert losses.shape == (1, 2, 8)
        torch.testing.assert_close(
            losses, torch.tensor(results["cpu"]["history"]), rtol=1e-5, atol=0
        )
        model = results[name]["model"]
        # Tied weights stay tied.
        assert model["embedding.weight"].data_ptr() == model["head.weight"].data_ptr()
        assert {value.device.type for value in model.values()} == {"cpu"}


def test_averages_of_integers_are_divided_towards_zero() -> None:
    variables = activate.environment("simulate-tpu", 2)
    done = run(*TORCHRUN, str(PROGRAMS / "averages.py"), **variables)
    assert done.returncode == 0, done.stderr
    # Nor does gloo print there.
    assert sorted(done.stdout.splitlines()) == ["rank 0 is right", "rank 1 is right"]


@pytest.mark.parametrize("form", ["zip", "legacy"])
def test_cuda_code_saves_from_the_tpu_what_it_saves_from_a_gpu(form: str, tmp_path: Path) -> None:
    program, path = str(PROGRAMS / "saved.py"), str(tmp_path / "saved.pt")
    options = ("--backend", "tpu", "--ranks", "1", program, form, path)
    saved = run("-m", "shims", *options)
    assert saved.returncode == 0, saved.stderr
    loaded = run(program, "load", path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert loaded.returncode == 0, loaded.stderr


MEETING = """
import os, sys
import torch.distributed as dist
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", sys.argv[1]
dist.init_process_group("tpu_dist", rank=0, world_size=1)
print("joined", os.environ["MASTER_PORT"])
"""


def test_two_runs_at_once_do_not_meet_at_the_port_that_their_scripts_name(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(MEETING)
    variables = activate.environment("simulate-tpu", 1)
    with socket.create_server(("127.0.0.1", 0)) as other_run:
        named = str(other_run.getsockname()[1])
        done = run("-P", "-m", "shims._started", "1", "", str(script), named, **variables)
    assert done.stdout == f"joined {named}\n", done.stderr


NORMALIZED = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
batches = [torch.randn(4, 3, 8, 8) + 1 for _ in range(3)]
twin = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
twin.load_state_dict(model.state_dict())
model = model.cuda()
for batch in batches:
    model(batch.cuda()).square().mean().backward()
    twin(batch).square().mean().backward()
torch.testing.assert_close(model[0].weight.grad.cpu(), twin[0].weight.grad, rtol=1e-4, atol=1e-6)
for name, value in twin[1].state_dict().items():
    torch.testing.assert_close(model[1].state_dict()[name].cpu(), value)
print("equal", float(twin[1].running_mean.abs().max()) > 0.01)
"""


def test_batch_normalization_keeps_running_statistics(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(NORMALIZED)
    done = run("-m", "shims", "--backend", "tpu", "--ranks", "1", str(script))
    assert done.returncode == 0, done.stderr
    assert "equal True" in done.stdout


def test_a_rewritten_script_updates_running_statistics(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = NORMALIZED.replace("cuda()", 'to("tpu")')
    script.write_text(f"import shims\nshims.update_running_statistics()\n{text}")
    done = run(str(script), **activate.environment("simulate-tpu", 1))
    assert done.returncode == 0, done.stderr
    assert "equal True" in done.stdout
    script.write_text(text)
    assert run(str(script), **activate.environment("simulate-tpu", 1)).returncode == 1


def test_a_simulated_tpu_stays_one_beside_a_real_one() -> None:
    program = """
from pathlib import Path
from shims import simulate_tpu, tpu
simulate_tpu.install(1)
tpu.tpu_device_files = lambda: [Path("/dev/accel0")]
import shims
from shims.api_errors import MemoryUnknownError
try:
    shims.memory()
except MemoryUnknownError as error:
    print(error)
"""
    done = run("-W", "ignore", "-c", program, MIGRATE_BACKEND="tpu", **{AUTOLOAD: "0"})
    assert "shims.memory() has no answer on a simulated TPU" in done.stdout, done.stderr


def test_torch_tpu_that_torch_has_loaded_is_one_line() -> None:
    program = "import torch, shims; shims.device()"
    variables = {"MIGRATE_BACKEND": "tpu", "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    done = run("-W", "ignore", "-c", program, **variables)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert "start the program with TORCH_DEVICE_BACKEND_AUTOLOAD=0" in last


@pytest.mark.parametrize("kind", ["missing", "empty"])
def test_a_plugin_that_does_not_load_is_one_line(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "plugin.so"
    if kind == "empty":
        path.write_text("no library")
    program = f"""
from pathlib import Path
from shims import simulate_tpu
from shims._simulated_tpu import versions
versions.plugin_file = lambda: Path({str(path)!r})
try:
    simulate_tpu.install(1)
except simulate_tpu.NotSimulatedError as error:
    print(error)
"""
    done = run("-c", program, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.stdout.count("\n") == 1, done.stderr
    assert f"the PJRT plugin {path} does not load" in done.stdout


def test_python_m_shims_ends_with_2_if_the_plugin_does_not_load(tmp_path: Path) -> None:
    module = tmp_path / "lammps_jax_pjrt_cpu"
    module.mkdir()
    (module / "__init__.py").touch()
    (module / "pjrt_c_api_cpu_plugin.so").write_text("no library")
    path = os.pathsep.join([str(tmp_path), str(PROGRAMS.parents[3])])
    options = ("--backend", "tpu", "--ranks", "2", str(PORTABLE))
    done = run("-m", "shims", *options, PYTHONPATH=path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "does not load" in line


def test_cumulative_sums_are_computed_as_on_the_cpu(tmp_path: Path) -> None:
    results = []
    for device in ("cpu", "tpu"):
        out = tmp_path / f"{device}.pt"
        variables = activate.environment("simulate-tpu", 1) if device == "tpu" else {}
        done = run(str(PROGRAMS / "cumulative.py"), device, str(out), **variables)
        assert done.returncode == 0, done.stderr
        results.append(torch.load(out))
    want, got = results
    assert want.keys() == got.keys()
    for name, value in want.items():
        assert got[name].dtype == value.dtype
        torch.testing.assert_close(got[name], value, rtol=1e-6, atol=1e-6)
