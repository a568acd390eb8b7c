"""`migrate weights` from and to buckets, beside a plain parallel copy; what it costs; and what disturbs it.

    python benchmarks/weights_remote.py [copy] [get] [memory] [headers] [faults] [kills] [scale]

Both ends are on this machine: an emulated bucket, a server of files, a hub (`tests/servers.py`). Without
words all are measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

import numpy as np
from history import append

from tests.servers import BucketProxy, Content, Faults, FileServer, HubServer, bucket, running

MB = 1 << 20
RATIOS = "nothing to transpose, all transposed"


def record(measured: str, result: str, goal: str = "") -> None:
    """Append a figure to the history."""
    append("weights-remote", {"measured": measured, "result": result, "goal": goal})


def state(layers: int, rows: int, columns: int, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    random_ = np.random.default_rng(seed)
    return {
        f"layers.{index}.weight": random_.standard_normal((rows, columns), np.float32)
        for index in range(layers)
    }


def sharded(arrays: dict[str, np.ndarray[Any, Any]]) -> dict[str, bytes]:
    from safetensors.numpy import save

    names = {key: f"model-{number:05}.safetensors" for number, key in enumerate(arrays)}
    files = {names[key]: save({key: array}) for key, array in arrays.items()}
    return files | {"model.safetensors.index.json": json.dumps({"weight_map": names}).encode()}


@contextlib.contextmanager
def emulated() -> Iterator[tuple[str, BucketProxy]]:
    """The bucket itself, and behind a proxy; what is set for this process and its children is the bucket."""
    with tempfile.TemporaryDirectory() as folder, bucket(Path(folder) / "content") as url:
        os.environ["FSSPEC_GS_TOKEN"], os.environ["FSSPEC_GS_PROJECT"] = "anon", "p"
        os.environ["STORAGE_EMULATOR_HOST"] = url
        import fsspec

        fsspec.config.conf["gs"] = {"token": "anon", "project": "p"}
        with running(BucketProxy(url)) as proxy:
            assert isinstance(proxy, BucketProxy)
            yield url, proxy


def files_of_bucket() -> Any:
    from converters.remote.buckets import filesystem

    return filesystem("gs", "gs://bkt", "the bucket")


def put(files: dict[str, bytes], folder: str) -> None:
    fs = files_of_bucket()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: fs.pipe_file(f"{folder}/{name}", files[name]), files))


def written_to_disk() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def peak_kilobytes() -> int:
    """Of this process; what `getrusage` says begins with that of the one that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def copied(folder: str, target: str) -> float:
    """Seconds of a plain parallel copy, each object got and put whole."""
    fs = files_of_bucket()
    names = [path.rpartition("/")[2] for path in fs.ls(folder, detail=False)]
    begun = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        moved = pool.map(
            lambda name: fs.pipe_file(f"{target}/{name}", fs.cat_file(f"{folder}/{name}")), names
        )
        list(moved)
    return time.perf_counter() - begun


def converted(folder: str, output: str, kind: str, shard: int) -> float:
    from converters import convert

    begun = time.perf_counter()
    convert(
        f"gs://{folder}/model.safetensors.index.json",
        output=f"gs://{output}",
        assume=[f"layers.*={kind}"],
        shard_bytes=shard,
    )
    return time.perf_counter() - begun


def measure_copy() -> None:
    arrays = state(8, 2048, 2048, 1)  # 8 shards of 16 MB
    total = sum(array.nbytes for array in arrays.values())
    with emulated():
        put(sharded(arrays), "bkt/src")
        converted("bkt/src", "bkt/warm", "Embedding", 16 * MB)
        before = written_to_disk()
        plain, same, transposed = [], [], []
        for turn in range(3):
            plain.append(copied("bkt/src", f"bkt/copy{turn}"))
            same.append(converted("bkt/src", f"bkt/same{turn}", "Embedding", 16 * MB))
            transposed.append(converted("bkt/src", f"bkt/turned{turn}", "Linear", 16 * MB))
        disk = written_to_disk() - before
    best = min(plain)
    print(f"plain parallel copy by gcsfs, {total / 1e6:.0f} MB: {total / best / 1e6:.0f} MB/s")
    print(f"converted, nothing to transpose: {best / min(same):.2f} of its speed")
    print(f"converted, all transposed:       {best / min(transposed):.2f} of its speed")
    print(f"written to local disks by this process: {disk} bytes")
    speed = f"{total / 1e6:.0f} MB, {total / best / 1e6:.0f} MB/s"
    ratios = f"{best / min(same):.2f}, {best / min(transposed):.2f} ({speed})"
    record(f"bucket to bucket ÷ plain parallel copy by gcsfs: {RATIOS}", ratios, "0.8, 0.6")
    record("bytes written to local disks, bucket to bucket", f"{disk:,}", "0")


def measure_get() -> None:
    """A server as fast as this machine: got by the same client into a file, and converted into one."""
    from converters import convert
    from converters.remote.ranges import session

    arrays = state(4, 8192, 4096, 1)  # four of 128 MB
    total = sum(array.nbytes for array in arrays.values())
    with tempfile.TemporaryDirectory() as folder, running(FileServer()) as server:
        assert isinstance(server, FileServer)
        for name, data in sharded(arrays).items():
            server.put(f"/src/{name}", data)
        url = f"{server.url}/src/"

        def got(span: tuple[str, int, int]) -> int:
            name, start, end = span
            asking = {"Range": f"bytes={start}-{end - 1}"}
            return len(session("").get(url + name, headers=asking).content)

        spans = [
            (f"model-{number:05}.safetensors", start, start + 16 * MB)
            for number in range(len(arrays))
            for start in range(0, total // len(arrays), 16 * MB)
        ]
        seconds: dict[str, list[float]] = {"plain": [], "Embedding": [], "Linear": []}
        for turn in range(4):
            for what, measured in seconds.items():
                begun = time.perf_counter()
                if what == "plain":
                    with ThreadPoolExecutor(8) as pool, open(f"{folder}/plain", "wb") as out:
                        assert sum(pool.map(got, spans)) > 0.9 * total
                        for array in arrays.values():
                            out.write(array.data)
                        os.fsync(out.fileno())
                else:
                    source, output = (
                        f"{url}model.safetensors.index.json",
                        f"{folder}/{what}{turn}.safetensors",
                    )
                    convert(source, output=output, assume=[f"layers.*={what}"])
                if turn:  # the first one warms up
                    measured.append(time.perf_counter() - begun)
                for path in Path(folder).iterdir():
                    path.unlink()
    plain = min(seconds["plain"])
    print(f"plain parallel ranges to a file, {total / 1e6:.0f} MB: {total / plain / 1e6:.0f} MB/s")
    print(
        f"converted to a file, nothing to transpose: {plain / min(seconds['Embedding']):.2f} of its speed"
    )
    print(
        f"converted to a file, all transposed:       {plain / min(seconds['Linear']):.2f} of its speed"
    )
    speed = f"{total / 1e6:.0f} MB, {total / plain / 1e6:.0f} MB/s"
    ratios = (
        f"{plain / min(seconds['Embedding']):.2f}, {plain / min(seconds['Linear']):.2f} ({speed})"
    )
    record(f"server to a file ÷ plain ranges to a file: {RATIOS}", ratios, "0.8, 0.6")


def _child(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, __file__, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def convert_alone(source: str, output: str, form: str, ahead: str) -> None:
    """In a process of its own: the peak memory above what the libraries take."""
    import gcsfs  # noqa: F401 (one of the libraries)

    from converters import convert
    from converters.planning_apart import planned_apart
    from converters.remote.names import source_of

    source_of(source).read_bytes()  # type: ignore[union-attr]
    base = peak_kilobytes()
    before = written_to_disk()
    convert(
        source,
        output=output,
        format=form,  # type: ignore[arg-type]
        assume=["layers.*=Linear"],
        ahead_bytes=int(ahead),
        planner=planned_apart,
        resume=True,
    )
    peak = peak_kilobytes()
    print(json.dumps({"peak": (peak - base) << 10, "disk": written_to_disk() - before}))


def measure_memory() -> None:
    from converters.output.far_partial import PART_BYTES, waiting_bytes

    arrays = state(2, 6144, 8192, 2) | {
        f"layers.{9 + n}.weight": array for n, array in enumerate(state(8, 512, 512, 3).values())
    }
    largest = max(array.nbytes for array in arrays.values())
    with emulated(), running(FileServer()) as server:
        assert isinstance(server, FileServer)
        for name, data in sharded(arrays).items():
            server.put(f"/src/{name}", data)
        source = f"{server.url}/src/model.safetensors.index.json"
        peaks, flights = [], []
        for ahead in (0, 256 * MB):
            process = _child(["--alone", source, f"gs://bkt/out-{ahead}", "orbax", str(ahead)])
            said = process.communicate()[0].decode()
            assert process.returncode == 0, said
            found = json.loads(said.splitlines()[-1])
            waiting = waiting_bytes(ahead) + 3 * PART_BYTES  # and what the client is sending
            print(
                f"{ahead >> 20} MB read ahead: peak {found['peak'] / 1e6:.0f} MB above the libraries (goal "
                f"{(1.2 * largest + 300e6) / 1e6:.0f} and in flight {(ahead + waiting) / 1e6:.0f}), the "
                f"largest tensor has {largest / 1e6:.0f}; {found['disk']} bytes to local disks"
            )
            peaks.append(f"{found['peak'] / 1e6:.0f} MB")
            flights.append(f"{(ahead + waiting) / 1e6:.0f}")
    record(
        f"peak, server to orbax in a bucket, largest tensor {largest / 1e6:.0f} MB: nothing read ahead, "
        "256 MB read ahead",
        ", ".join(peaks),
        f"{(1.2 * largest + 300e6) / 1e6:.0f} MB above {', '.join(flights)} MB in flight",
    )


def measure_headers() -> None:
    import huggingface_hub

    from converters.checkpoint import open_checkpoint
    from converters.remote import store
    from converters.remote.names import source_of
    from converters.remote.ranges import session

    arrays = {
        f"layers.{index}.weight": np.full((64, 64), index, np.float32) for index in range(200)
    }
    with running(FileServer()) as server:
        assert isinstance(server, FileServer)
        files = sharded(arrays)
        for name, data in files.items():
            server.put(f"/run/{name}", data)
        server.latency = 0.1
        begun = time.perf_counter()
        opened = open_checkpoint(source_of(f"{server.url}/run/model.safetensors.index.json"))
        seconds = time.perf_counter() - begun
        each = {name: len(server.bytes_asked(f"/run/{name}")) for name in files}
        print(
            f"headers of 200 shards at 100 ms: {max(each.values())} request each, "
            f"{server.most_running} at a time, {seconds:.1f} s"
        )
        record(
            "headers of 200 shards at 100 ms each: requests",
            f"{max(each.values())} each, {server.most_running} at a time, {seconds:.1f} s",
        )
        # How many waited for one another: as if there were connections for all.
        server.spans.clear()
        server.requests.clear()
        server.latency = 3.0
        few, store.CONNECTIONS = store.CONNECTIONS, 256
        client = import_module(type(session("")).__module__.partition(".")[0])
        unlimited = client.Limits(max_connections=None, max_keepalive_connections=None)
        huggingface_hub.set_client_factory(lambda: client.Client(limits=unlimited))
        again = open_checkpoint(source_of(f"{server.url}/run/model.safetensors.index.json"))
        store.CONNECTIONS = few
        assert again.infos == opened.infos
        server.latency = 0.0
        print(f"round trips in depth, with connections for all: {server.depth()}")
        for key in again.infos:
            again.read(key)
        asked = sum(
            min(end, len(data)) - start
            for name, data in files.items()
            for start, end in server.bytes_asked(f"/run/{name}")
        )
        every = sum(map(len, files.values()))
        print(f"bytes read, with all tensors: {asked} of {every}")
        record("headers of 200 shards, round trips in depth", str(server.depth()), "2")
        record("bytes read, all tensors of 200 shards", f"{asked:,} of {every:,}", "each once")


def _outcome(read: Callable[[], bytes], expected: bytes) -> str:
    from converters.errors import ConversionError

    try:
        return "right" if read() == expected else "WRONG"
    except ConversionError as error:
        return "one line" if len(str(error).splitlines()) == 1 else "WRONG"


def measure_faults() -> None:
    from safetensors.numpy import save

    from converters.checkpoint import open_checkpoint
    from converters.remote import retries
    from converters.remote.names import source_of

    retries.FIRST_PAUSE = 0.005
    arrays = state(6, 200, 300, 4)
    data, other = save(arrays), save(state(6, 200, 300, 5))
    expected = b"".join(array.tobytes() for array in arrays.values())
    counts: dict[str, int] = {}

    def read_all(name: str, meanwhile: Callable[[], None] = lambda: None) -> bytes:
        opened = open_checkpoint(source_of(name))
        meanwhile()
        for key in arrays:
            opened.prepare(key)
        return b"".join(opened.read(key).tobytes() for key in arrays)

    def count(kind: str, outcome: str) -> None:
        counts[f"{kind}: {outcome}"] = counts.get(f"{kind}: {outcome}", 0) + 1

    with running(FileServer()) as server:
        assert isinstance(server, FileServer)
        for seed in range(430):
            server.put("/net.safetensors", data)
            server.faults = Faults(seed, rate=random.Random(seed).choice((0.1, 0.3, 0.6)))
            replaced = seed % 10 == 0
            change = (lambda: server.put("/net.safetensors", other)) if replaced else (lambda: None)
            outcome = _outcome(
                lambda c=change: read_all(f"{server.url}/net.safetensors", c), expected
            )  # type: ignore[misc]
            count("server, replaced in the middle" if replaced else "server", outcome)
    with running(HubServer()) as hub:
        assert isinstance(hub, HubServer)
        from huggingface_hub import constants

        constants.ENDPOINT = hub.url
        constants.HUGGINGFACE_CO_URL_TEMPLATE = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        hub.commit("org/name", {"model.safetensors": data})
        for seed in range(50):
            hub.faults = Faults(seed, rate=0.3)
            count("hub", _outcome(lambda: read_all("org/name"), expected))
    with emulated() as (_, proxy):
        os.environ["STORAGE_EMULATOR_HOST"] = proxy.url
        import gcsfs

        gcsfs.GCSFileSystem.clear_instance_cache()
        for seed in range(500):
            put({"net.safetensors": data}, "bkt/f")
            proxy.faults = Faults(seed, rate=0.2, most=3)
            replaced = seed % 10 == 0
            change = (
                (lambda: put({"net.safetensors": other}, "bkt/f")) if replaced else (lambda: None)
            )
            outcome = _outcome(lambda c=change: read_all("gs://bkt/f/net.safetensors", c), expected)  # type: ignore[misc]
            proxy.faults = None
            count("bucket, replaced in the middle" if replaced else "bucket", outcome)
    for name, number in sorted(counts.items()):
        print(f"faults, {name}: {number} runs")
    record(
        "500 seeded runs with faults: right, one line, wrong",
        "; ".join(f"{name} {number}" for name, number in sorted(counts.items())),
        "right or one line",
    )


def measure_kills() -> None:
    arrays = state(24, 700, 500, 6)
    source = "gs://bkt/src/model.safetensors.index.json"
    kills, resumed = 0, 0
    with emulated():
        put(sharded(arrays), "bkt/src")
        fs = files_of_bucket()
        reference = _child(["--alone", source, "gs://bkt/reference", "orbax", str(MB)])
        assert reference.wait() == 0, reference.communicate()[0].decode()
        expected = {
            path.partition("/reference/")[2]: fs.cat_file(path) for path in fs.find("bkt/reference")
        }
        chance = random.Random(7)
        for turn in range(10):
            output = f"bkt/out{turn}"
            while kills < 5 * (turn + 1):
                process = _child(["--alone", source, f"gs://{output}", "orbax", str(MB)])
                wanted = chance.randrange(30)
                while process.poll() is None and len(fs.find(output)) < wanted:
                    time.sleep(0.02)
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    kills += 1
                process.communicate()
                if fs.exists(f"{output}/_METADATA"):  # it was quicker: begin another one
                    fs.rm(output, recursive=True)
            last = _child(["--alone", source, f"gs://{output}", "orbax", str(MB)])
            said = last.communicate()[0].decode()
            assert last.returncode == 0, said
            found = {
                path.partition(f"/out{turn}/")[2]: fs.cat_file(path) for path in fs.find(output)
            }
            assert found == expected, sorted(found.keys() ^ expected.keys())
            resumed += 1
    print(f"killed {kills} times, resumed {resumed} times to the end: the same bytes each time")
    record(
        f"killed {kills} times, 10 outputs, then --resume: same bytes",
        f"{resumed} of 10",
        "the same bytes",
    )


LAYERS, ROWS, COLUMNS, PER_SHARD = 3200, 8192, 15259, 16  # 250 MB each in bfloat16
NBYTES = ROWS * COLUMNS * 2


def formula(first: int) -> Content:
    """A shard of which nothing is stored: its bytes follow from their places."""
    pattern = np.random.default_rng(1).integers(0, 256, MB, np.uint8).tobytes() * 17
    entries = {
        f"layers.{first + index}.weight": {
            "dtype": "BF16",
            "shape": [ROWS, COLUMNS],
            "data_offsets": [index * NBYTES, (index + 1) * NBYTES],
        }
        for index in range(PER_SHARD)
    }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)  # as safetensors itself writes it: so tensors are aligned
    start = len(header).to_bytes(8, "little") + header

    def part(begin: int, end: int) -> bytes:
        head = start[begin:end]
        begin = max(begin, len(start))
        return head + pattern[begin % MB : begin % MB + max(end - begin, 0)]

    return Content(len(start) + PER_SHARD * NBYTES, part, f"v{first}")


def serve_formula() -> None:
    with running(FileServer()) as server:
        assert isinstance(server, FileServer)
        names = {}
        for first in range(0, LAYERS, PER_SHARD):
            name = f"model-{first:05}.safetensors"
            server.put(f"/run/{name}", formula(first))
            names |= {f"layers.{first + index}.weight": name for index in range(PER_SHARD)}
        server.put("/run/model.safetensors.index.json", json.dumps({"weight_map": names}).encode())
        print(server.url, flush=True)
        sys.stdin.read()


def measure_scale() -> None:
    """In a process of its own: a peak is that of all that a process ever did."""
    process = _child(["--scale"])
    said = process.communicate()[0].decode()
    assert process.returncode == 0, said
    print(said, end="")


def scale_alone() -> None:
    """800 GB by a formula; one host's 1/64 is read and checked."""
    from converters.checkpoint import open_checkpoint
    from converters.planning import planned
    from converters.remote.names import source_of
    from converters.request import PlanOptions

    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout
        assert server.stdin
        url = server.stdout.readline().decode().strip()
        name = f"{url}/run/model.safetensors.index.json"
        begun = time.perf_counter()
        plan = planned(name, PlanOptions(assume=["layers.*=Linear"])).plan
        print(
            f"a dry run over {LAYERS * NBYTES / 1e9:.0f} GB in {LAYERS // PER_SHARD} shards: "
            f"{len(plan.rows)} keys, {(dry := time.perf_counter() - begun):.1f} s"
        )
        record("800 GB in 200 shards: a dry run", f"{dry:.1f} s")
        opened = open_checkpoint(source_of(name))
        expected = {first: formula(first) for first in range(0, LAYERS // 64, PER_SHARD)}
        base = peak_kilobytes()
        begun = time.perf_counter()
        for number in range(LAYERS // 64):
            array = opened.read(f"layers.{number}.weight").view(np.uint8).reshape(-1)
            made = expected[number // PER_SHARD * PER_SHARD]
            start = made.size - (PER_SHARD - number % PER_SHARD) * NBYTES
            for at in range(0, NBYTES, MB):
                end = min(at + MB, NBYTES)
                assert array[at:end].tobytes() == made.part(start + at, start + end), number
            del array
        seconds = time.perf_counter() - begun
        peak = (peak_kilobytes() - base) << 10
        server.stdin.close()
    size = LAYERS // 64 * NBYTES
    print(
        f"1/64 of it, {size / 1e9:.1f} GB, read and checked: {size / seconds / 1e6:.0f} MB/s, peak "
        f"{peak / 1e6:.0f} MB above the libraries (a tensor has {NBYTES / 1e6:.0f} MB)"
    )
    record(
        "1/64 of 800 GB (12.5 GB) read and each byte checked",
        f"{size / seconds / 1e6:.0f} MB/s, peak {peak / 1e6:.0f} MB",
        "600 MB",
    )


MEASURES = {
    "copy": measure_copy,
    "get": measure_get,
    "memory": measure_memory,
    "headers": measure_headers,
    "faults": measure_faults,
    "kills": measure_kills,
    "scale": measure_scale,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        convert_alone(*sys.argv[2:])
    elif sys.argv[1:2] == ["--serve"]:
        serve_formula()
    elif sys.argv[1:2] == ["--scale"]:
        scale_alone()
    else:
        for wanted in sys.argv[1:] or MEASURES:
            MEASURES[wanted]()
