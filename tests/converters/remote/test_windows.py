"""Parts of far tensors: what is looked at is there, and little else was read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from converters.checkpoint import open_checkpoint
from converters.remote.names import source_of
from tests.servers import BucketProxy, FileServer, free_port, running
from tests.waiting import LIMIT

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")


@pytest.fixture
def tensors(tmp_path: Path, files: FileServer) -> dict[str, np.ndarray[Any, Any]]:
    """Tensors of a server, in safetensors and in a zip of torch."""
    random = np.random.default_rng(3)
    made = {
        "rows": random.standard_normal((700, 900)).astype(np.float32),
        "cube": random.integers(0, 1 << 15, (40, 60, 80), np.int16),
        "line": random.standard_normal(300_000),
        "number": np.array(3.5, np.float32),
    }
    save_file(made, tmp_path / "net.safetensors")
    torch.save({key: torch.from_numpy(array) for key, array in made.items()}, tmp_path / "net.pt")
    for name in ("net.safetensors", "net.pt"):
        files.put(f"/{name}", (tmp_path / name).read_bytes())
    return made


@pytest.mark.parametrize("name", ["net.safetensors", "net.pt"])
def test_views_are_filled_as_they_are(
    name: str, tensors: dict[str, np.ndarray[Any, Any]], files: FileServer
) -> None:
    opened = open_checkpoint(source_of(f"{files.url}/{name}"))
    random = np.random.default_rng(5)
    for key, expected in tensors.items():
        for _ in range(12):
            window = opened.window(key)
            assert window is not None
            if not expected.ndim:  # NumPy gives a number, which is a copy
                assert window.cost([window.array[()]]) is None
                continue
            order = random.permutation(expected.ndim)
            cut = tuple(
                slice(*sorted(random.integers(0, side + 1, 2)), int(random.integers(1, 4)))
                for side in np.array(expected.shape)[order]
            )
            flip = tuple(slice(None, None, int(random.choice((1, -1)))) for _ in order)
            view = window.array.transpose(order)[flip][cut]
            cost = window.cost([view])
            assert cost is not None
            assert cost <= expected.nbytes
            window.prepare([view])
            window.fill(view)
            assert np.array_equal(view, expected.transpose(order)[flip][cut])


def test_rows_are_read_alone(tensors: dict[str, np.ndarray[Any, Any]], files: FileServer) -> None:
    opened = open_checkpoint(source_of(f"{files.url}/net.safetensors"))
    files.requests.clear()
    window = opened.window("rows")
    assert window is not None
    view = window.array[200:300].T
    assert window.cost([view]) == view.nbytes
    window.fill(view)
    assert sum(end - start for start, end in files.bytes_asked("/net.safetensors")) == view.nbytes


def test_a_copy_is_never_taken_for_values(
    tensors: dict[str, np.ndarray[Any, Any]], files: FileServer
) -> None:
    opened = open_checkpoint(source_of(f"{files.url}/net.safetensors"))
    window = opened.window("rows")
    assert window is not None
    copied = window.array.T.reshape(-1)
    assert window.cost([copied]) is None
    with pytest.raises(RuntimeError, match="a copy"):
        window.fill(copied)


ON_MESH = """
import sys
import jax, numpy as np
index, port, url, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(f"127.0.0.1:{port}", 4, index)
from converters import convert_to_mesh
tree = convert_to_mesh(url, assume=["layers.*=Linear"], mesh="data=2,model=4", spec=f"{folder}/rules.yaml")
for number in range(3):
    array = tree["params"][f"layers_{number}"]["kernel"]
    expected = np.load(f"{folder}/{number}.npy").T
    for shard in array.addressable_shards:
        assert np.asarray(shard.data).tobytes() == expected[shard.index].tobytes()
print("right")
jax.distributed.shutdown()
"""


@pytest.mark.long
@pytest.mark.parametrize("rules", ["kernel: [null, model]\n", "kernel: [model, null]\n"])
def test_each_of_four_processes_reads_what_its_devices_hold(
    rules: str, gs: BucketProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 simulated devices in 4 processes: of arrays that are cut by 4 each process needs a half.

    Where that half is the start of each row, each reads some rows, and the devices exchange them.
    """
    from tests.converters.remote.test_sources import put

    pytest.importorskip("jax")
    random = np.random.default_rng(1)
    state = {
        f"layers.{n}.weight": random.standard_normal((1024, 768), np.float32) for n in range(4)
    }
    for number, array in enumerate(state.values()):
        array.view(np.uint32)[5, 7:10] = (
            0x80000000,
            0x7F800001,
            0xFFC12345,
        )  # -0.0 and two kinds of NaN
        np.save(tmp_path / f"{number}.npy", array)
    save_file(state, tmp_path / "net.safetensors")
    put({"net.safetensors": (tmp_path / "net.safetensors").read_bytes()})
    (tmp_path / "rules.yaml").write_text(rules)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), *sys.path]))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    port = free_port()
    proxies = [running(BucketProxy(gs.emulator.geturl())) for _ in range(4)]
    heard = [proxy.__enter__() for proxy in proxies]
    words = [str(port), "gs://bkt/run/net.safetensors", str(tmp_path)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ON_MESH, str(index), *words],
            env={**os.environ, "STORAGE_EMULATOR_HOST": proxy.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index, proxy in enumerate(heard)
    ]
    said = [process.communicate(timeout=LIMIT)[0] for process in processes]
    for proxy in proxies:
        proxy.__exit__(None, None, None)
    assert all(text.endswith("right\n") for text in said), said
    name = "/download/storage/v1/b/bkt/o/run/net.safetensors"
    read = [sum(end - start for start, end in proxy.bytes_asked(name)) for proxy in heard]
    share = sum(array.nbytes for array in state.values()) / 2  # data=2: each half is held twice
    assert max(read) <= 1.1 * share, [count / share for count in read]
