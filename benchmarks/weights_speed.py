"""How fast a checkpoint becomes a Flax pytree, and in how much memory, beside `cp` and the hand-written way.

    python benchmarks/weights_speed.py [--rounds N] [--folder FOLDER]

Makes a sharded bfloat16 checkpoint of the shapes of Llama 3 8B, of WEIGHTS_SPEED_GB gigabytes (8), in a
temporary folder of FOLDER. Each round reads it once, so that it is in the page cache, copies it (`cp -r`,
then `sync` of the copy, since ours is on disk when it is done), and converts it to one file: with every
matrix in its layout, with every Linear transposed, and with every Linear transposed to msgpack.

Printed is the best of the rounds, on the clock and in seconds of the processors, which other work on the
machine disturbs less. For the limits it is the median of the rounds' own ratios on the clock: 0.8 of the
speed of `cp` and `sync` where the layout is kept, 0.5 where all are transposed; and a peak of 1.2 x the
largest tensor + 300 MB (VmHWM of the process, which counts mapped pages). Beside `cp` without `sync` no limit
is held.

Then a file of `torch.save` of a quarter of the size (2 GB at most), all of it transposed into msgpack: by
hand (torch.load, numpy, transpose, flax.serialization) and by us. Exit code 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from history import append

ROOT = Path(__file__).resolve().parents[1]
GIGA = 10**9
HIDDEN, INNER, KEYS, VOCABULARY = 4096, 14336, 1024, 128256
LIMITS = {"kept": 0.8, "transposed": 0.5}
MEMORY_FACTOR, MEMORY_REST = 1.2, 300e6
HAND_GB = 2.0
SHARD_BYTES = 2 * GIGA
POOL_BYTES = 96 << 20


@dataclass(frozen=True)
class Run:
    """One conversion: seconds on the clock and of the processors, and the peak in bytes (0: not ours)."""

    seconds: float
    processor: float
    peak: int = 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--child", nargs=3)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(*arguments.child)))
        return 0
    giga = float(os.environ.get("WEIGHTS_SPEED_GB", "8"))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        folder = Path(made)
        shapes = list(llama(giga * GIGA))
        index = make_sharded(folder / "llama", shapes)
        good = compare_with_cp(index, folder, shapes, arguments.rounds)
        shutil.rmtree(index.parent)
        compare_with_hand(folder, min(HAND_GB, giga / 4))
    return 0 if good else 1


def llama(size: float) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes until they have this many bytes; without the vocabulary where that is most of it."""
    vocabulary = VOCABULARY if size > 4 * GIGA else 8192
    yield "model.embed_tokens.weight", (vocabulary, HIDDEN)
    yield "lm_head.weight", (vocabulary, HIDDEN)
    done = 4 * vocabulary * HIDDEN
    layer = 0
    while done < size:
        for name, shape in (
            ("input_layernorm", (HIDDEN,)),
            ("self_attn.q_proj", (HIDDEN, HIDDEN)),
            ("self_attn.k_proj", (KEYS, HIDDEN)),
            ("self_attn.v_proj", (KEYS, HIDDEN)),
            ("self_attn.o_proj", (HIDDEN, HIDDEN)),
            ("post_attention_layernorm", (HIDDEN,)),
            ("mlp.gate_proj", (INNER, HIDDEN)),
            ("mlp.up_proj", (INNER, HIDDEN)),
            ("mlp.down_proj", (HIDDEN, INNER)),
        ):
            yield f"model.layers.{layer}.{name}.weight", shape
            done += nbytes(shape)
        layer += 1
    yield "model.norm.weight", (HIDDEN,)


def nbytes(shape: tuple[int, ...]) -> int:
    return 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)


def make_sharded(folder: Path, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> Path:
    """A checkpoint in Hugging Face's sharded form; random finite values."""
    import ml_dtypes
    import numpy as np

    values = np.random.default_rng(0).standard_normal(POOL_BYTES // 2, dtype=np.float32)
    pool = values.astype(ml_dtypes.bfloat16).view(np.uint8).data
    folder.mkdir()
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    held = 0
    for name, shape in shapes:
        if held and held + nbytes(shape) > SHARD_BYTES:
            shards.append([])
            held = 0
        shards[-1].append((name, shape))
        held += nbytes(shape)
    weight_map = {}
    for number, shard in enumerate(shards):
        file = f"model-{number:05}.safetensors"
        weight_map |= dict.fromkeys((name for name, _ in shard), file)
        write_shard(folder / file, shard, pool)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    subprocess.run(["sync"], check=True)
    return index


def write_shard(path: Path, shard: Sequence[tuple[str, tuple[int, ...]]], pool: memoryview) -> None:
    header = {}
    end = 0
    for name, shape in shard:
        span = (end, end := end + nbytes(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": span}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        begin = 0  # elsewhere in the pool for each tensor, so that no two are equal
        for _, shape in shard:
            left = nbytes(shape)
            begin = (begin + 2 * 7919) % (len(pool) // 2)
            while left:
                part = pool[begin : begin + left]
                file.write(part)
                left -= len(part)
                begin = 0


def compare_with_cp(
    index: Path, folder: Path, shapes: Sequence[tuple[str, tuple[int, ...]]], rounds: int
) -> bool:
    size = sum(path.stat().st_size for path in index.parent.iterdir())
    largest = max(nbytes(shape) for _, shape in shapes)
    runs: dict[str, list[Run]] = {}
    for _ in range(rounds):
        for path in index.parent.iterdir():
            subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)
        copied, on_disk = copy(index.parent, folder / "copy")
        runs.setdefault("cp", []).append(copied)
        runs.setdefault("cp, sync", []).append(on_disk)
        for way in ("kept", "transposed", "msgpack"):
            runs.setdefault(way, []).append(convert(way, index, folder / "out"))
    most = MEMORY_FACTOR * largest + MEMORY_REST
    print(f"{size / GIGA:.2f} GB, largest tensor {largest / 1e6:.0f} MB, {rounds} rounds")
    print(
        f"{'':11} {'s':>6} {'GB/s':>5} {'CPU s':>6} {'of cp+sync':>11} {'limit':>6} {'of cp':>6} "
        f"{'peak MB':>8} {'limit':>6}"
    )
    good = True
    for way, found in runs.items():
        best = min(run.seconds for run in found)
        ratio = ratio_to(runs["cp, sync"], found)
        peak = max(run.peak for run in found)
        limit = LIMITS.get(way)
        print(
            f"{way:11} {best:6.2f} {size / best / GIGA:5.2f} "
            f"{min(run.processor for run in found):6.2f} {ratio:11.2f} {limit or '':>6} "
            f"{ratio_to(runs['cp'], found):6.2f} {peak / 1e6:8.0f} {most / 1e6 if peak else 0:6.0f}"
        )
        append(
            "weights-speed",
            {
                "way": way if size > 8 * GIGA else f"{way}, {size / GIGA:.1f} GB",
                "GB": f"{size / GIGA:.2f}",
                "s": f"{best:.2f}",
                "GB/s": f"{size / best / GIGA:.2f}",
                "CPU s": f"{min(run.processor for run in found):.2f}",
                "÷ cp and sync": f"{ratio:.2f}",
                "limit": limit or "",
                "÷ cp": f"{ratio_to(runs['cp'], found):.2f}",
                "peak MB": f"{peak / 1e6:.0f}" if peak else "",
                "peak limit, MB": f"{most / 1e6:.0f}" if peak else "",
            },
        )
        good &= (limit is None or ratio >= limit) and peak <= most
    return good


def ratio_to(peers: Sequence[Run], runs: Sequence[Run]) -> float:
    pairs = zip(peers, runs, strict=True)
    return statistics.median(peer.seconds / run.seconds for peer, run in pairs)


def copy(source: Path, target: Path) -> tuple[Run, Run]:
    """`cp -r`, and the same with bringing the copy to the disk."""
    subprocess.run(["sync"], check=True)
    start, before = time.perf_counter(), children()
    subprocess.run(["cp", "-r", source, target], check=True)
    copied = Run(time.perf_counter() - start, children() - before)
    subprocess.run(["sync", *target.iterdir()], check=True)
    on_disk = Run(time.perf_counter() - start, children() - before)
    shutil.rmtree(target)
    return copied, on_disk


def children() -> float:
    """Seconds of the processors that the processes started here have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def convert(way: str, source: Path, target: Path) -> Run:
    """A conversion in a process of its own."""
    subprocess.run(["sync"], check=True)
    done = subprocess.run(
        [sys.executable, __file__, "--child", way, source, target],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    target.unlink()
    return Run(*json.loads(done.stdout))


def child(way: str, source: str, target: str) -> tuple[float, float, int]:
    """What a `Run` has, of this process; without its imports."""
    convert_here = by_hand if way == "hand" else partial(by_us, way)
    import_what_is_needed(way)
    start, before = time.perf_counter(), time.process_time()
    convert_here(Path(source), Path(target))
    seconds, processor = time.perf_counter() - start, time.process_time() - before
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return seconds, processor, int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM")


def import_what_is_needed(way: str) -> None:
    for name in ("flax.serialization", "torch") if way == "hand" else ("converters.output",):
        importlib.import_module(name)


def by_us(way: str, source: Path, target: Path) -> None:
    from converters.checkpoint import TensorInfo, open_checkpoint
    from converters.layers.layout import UNCHANGED, Permute
    from converters.mapping.leaves import Piece, PlannedLeaf
    from converters.output import leaves_of, write_pytree

    checkpoint = open_checkpoint(source)
    planned = []
    for key, info in checkpoint.infos.items():
        turned = way != "kept" and len(info.shape) == 2 and "embed" not in key
        layout = Permute((1, 0)) if turned else UNCHANGED
        shape = layout.shape(info.shape)
        path = "params/" + key.replace(".", "/")
        planned.append(PlannedLeaf(path, TensorInfo(shape, info.dtype), (Piece(key, layout),)))
    form = "msgpack" if way == "msgpack" else "safetensors"
    write_pytree(target, leaves_of(planned, checkpoint), form)


def by_hand(source: Path, target: Path) -> None:
    """What people write: everything in memory, twice."""
    import ml_dtypes
    import torch
    from flax import serialization

    state = torch.load(source, weights_only=True)
    tree: dict = {}
    for key, tensor in state.items():
        array = tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        *folders, name = key.split(".")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = array.T if array.ndim == 2 and "embed" not in key else array
    with target.open("wb") as file:
        file.write(serialization.msgpack_serialize({"params": tree}))
        file.flush()
        os.fsync(file.fileno())


def compare_with_hand(folder: Path, giga: float) -> None:
    import torch

    state = {name: torch.randn(shape).to(torch.bfloat16) for name, shape in llama(giga * GIGA)}
    source = folder / "model.bin"
    torch.save(state, source)
    del state
    size = source.stat().st_size
    print(f"\n{size / GIGA:.2f} GB of torch.save → msgpack")
    for name, way in (("by hand", "hand"), ("by us", "msgpack")):
        run = convert(way, source, folder / "out")
        print(
            f"{name:11} {run.seconds:6.2f} s, {run.processor:.2f} CPU s, "
            f"{size / run.seconds / GIGA:.2f} GB/s, peak {run.peak / 1e6:.0f} MB"
        )
        append(
            "weights-speed",
            {
                "way": f"torch.save to msgpack, {name}",
                "GB": f"{size / GIGA:.2f}",
                "s": f"{run.seconds:.2f}",
                "GB/s": f"{size / run.seconds / GIGA:.2f}",
                "CPU s": f"{run.processor:.2f}",
                "peak MB": f"{run.peak / 1e6:.0f}",
            },
        )


if __name__ == "__main__":
    sys.exit(main())
