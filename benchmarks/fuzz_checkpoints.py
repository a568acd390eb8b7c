"""Whether damaged and malicious checkpoints are refused in one line, whatever is wrong with them.

    python benchmarks/fuzz_checkpoints.py [--files N] [--seed N] [--forms REGEX] [--keep FOLDER]

Small real checkpoints of every format, some with code in their pickles, are damaged at random: bits, bytes,
cuts, splices, lengths, pickle instructions, numbers of headers. Each is opened, planned and read whole,
together with the rest of the training checkpoint; a new process does it after every 50. A failure is

- an exception that is not a ConversionError, or one whose message has several lines;
- anything executed: the canary file exists, or Python reported (by an audit hook) a process, an unpickled
  name, compiled code or a file opened for writing;
- a file that takes more than 10 s, or 512 MB of memory beyond those of the program itself;
- a process that dies.

Prints what became of the files of each format, and each failure; exit code 1 where there is any. --keep
writes the files that failed into a folder.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import enum
import functools
import io
import json
import multiprocessing
import os
import pickle
import random
import re
import resource
import shutil
import struct
import sys
import tempfile
import time
import traceback
import types
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from history import append

TOGETHER = 50  # files that one process examines
SECONDS = 10
MEMORY = 512 << 20
ADDRESSES = (
    6 << 30
)  # beyond that an allocation fails, so that a bomb does not take the machine down
FORBIDDEN_EVENTS = frozenset(
    {
        "exec",
        "compile",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.fork",
        "subprocess.Popen",
        "pickle.find_class",
        "socket.connect",
        "ctypes.dlopen",
    }
)
CODES = bytes(range(0x80, 0x98)) + b"(.0123BCFGIJKLMNQRSTUVXabcdehijlopqrstu]})"
GLOBALS = (
    b"cposix\nsystem\n",
    b"cbuiltins\neval\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ctorch\nFloatStorage\n",
    b"ccollections\nOrderedDict\n",
    b"cbuiltins\nbytearray\n",
    b"cnumpy.core.multiarray\n_reconstruct\n",
    b"cnumpy\ndtype\n",
    b"ctorch.storage\n_load_from_bytes\n",
    b"ccopyreg\n_reconstructor\n",
    b"cbuiltins\ngetattr\n",
    b"cargparse\nNamespace\n",
    b"ctorch.nn.modules.conv\nConv2d\n",
)
NUMBERS = (
    0,
    1,
    2,
    0x7F,
    0xFF,
    0xFFFF,
    0x7FFFFFFF,
    0xFFFFFFFF,
    1 << 40,
    (1 << 63) - 1,
    (1 << 64) - 1,
)


@dataclass(frozen=True)
class Seed:
    """A real checkpoint.

    Attributes:
        form: its format, and what is in it.
        files: name → content.
        opened: the name that is opened; "" for the folder.
    """

    form: str
    files: Mapping[str, bytes]
    opened: str


@dataclass(frozen=True)
class Outcome:
    """What became of one file: "read", the error's name, or a failure with its text."""

    form: str
    what: str
    failure: str = ""


class Code:
    """Unpickling this makes the canary file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.canary}",)


class Evaluated(Code):
    """The same by eval."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (f"open({str(self.canary)!r}, 'w')",)


class Color(enum.Enum):
    """A member of it is pickled by its value, or by its name."""

    RED = 1


@dataclasses.dataclass
class Options:
    """What a run was told."""

    width: int = 3
    color: Color = Color.RED


class Config(dict[str, Any]):
    """A dict of a class of its own."""


def things() -> dict[str, Any]:
    """Objects that training checkpoints hold beside the weights."""
    import numpy as np

    return {
        "args": argparse.Namespace(lr=0.1, layers=[2, 3], out=Path("runs") / "1"),
        "simple": types.SimpleNamespace(a=1),
        "options": Options(),
        "config": Config(model=Config(width=3), names=("a", "b")),
        "best": np.float32(0.5),
        "losses": np.arange(6.0).reshape(2, 3),
        "random": np.random.RandomState(0).get_state(),
        "generator": np.random.default_rng(0),
        "objects": np.array([Options(), None, "x"], dtype=object),
        "started": datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "took": datetime.timedelta(seconds=3),
        "metrics": collections.defaultdict(list, a=[1, 2]),
        "last": collections.deque([1, 2, 3], maxlen=5),
        "steps": range(0, 10, 2),
        "window": slice(1, 2),
        "activation": functools.partial(max, 0),
    }


def more_seeds(canary: Path) -> list[Seed]:
    """Checkpoints that hold more than tensors: objects, whole modules, arrays, programs."""
    import numpy as np
    import torch

    generator = torch.Generator().manual_seed(0)
    weights = {"0.weight": torch.randn(5, 3, generator=generator), "1.weight": torch.ones(3, 4)}
    arrays = {key: value.numpy() for key, value in weights.items()}
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, groups=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.Flatten(),
        torch.nn.utils.weight_norm(torch.nn.Linear(16, 5)),
        torch.nn.MultiheadAttention(8, 2),
        torch.nn.LSTM(3, 4, 2, bidirectional=True),
        torch.nn.ModuleDict({"a": torch.nn.ConvTranspose2d(4, 6, 2, groups=2)}),
    )

    def saved(value: Any, **options: Any) -> bytes:
        file = io.BytesIO()
        torch.save(value, file, **options)
        return file.getvalue()

    def changed(archive: bytes, name: str, content: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as new, zipfile.ZipFile(io.BytesIO(archive)) as old:
            for one in old.namelist():
                new.writestr(one, content if one.endswith(name) else old.read(one))
        return file.getvalue()

    old = {"_use_new_zipfile_serialization": False}
    training = {"model": weights, **things(), "epoch": 3}
    scripted, exported = io.BytesIO(), io.BytesIO()
    small = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    torch.jit.save(torch.jit.trace(small, torch.ones(2, 3)), scripted)
    torch.export.save(torch.export.export(small, (torch.ones(2, 3),)), exported)
    older = io.BytesIO()
    with zipfile.ZipFile(older, "w") as archive:
        archive.writestr("version", "8.3")
        archive.writestr("serialized_exported_program.json", "{}")
        archive.writestr("serialized_state_dict.pt", saved(small.state_dict()))
        archive.writestr("serialized_constants.pt", saved({}))
    evil = pickle.dumps({"x": Code(canary)}, 2)
    hooked = torch.nn.Linear(3, 5)
    hooked.register_forward_hook(functools.partial(os.system, f"touch {canary}"))
    claims = pickle.dumps({"a": arrays["0.weight"]}, 2).replace(
        b"K\x05K\x03", b"M\xff\xffM\xff\xff"
    )
    keys = b"".join(b"K" + bytes([number]) + b"N" for number in range(250))
    deep = b"\x80\x02" + b"cm\nRecord\n)\x81}X\x01\0\0\0a" * 10_000 + b"N" + b"sb" * 10_000 + b"."
    return [
        Seed("objects", {"x.pt": saved(training)}, "x.pt"),
        Seed("objects, protocol 4", {"x.pt": saved(training, pickle_protocol=4)}, "x.pt"),
        Seed("objects, legacy", {"x.pt": saved(training, **old)}, "x.pt"),
        Seed("module", {"x.pt": saved(model)}, "x.pt"),
        Seed("module, legacy", {"x.pt": saved(model, **old)}, "x.pt"),
        Seed("module, training", {"x.pt": saved({"model": small, **things()})}, "x.pt"),
        Seed("module, code", {"x.pt": saved(hooked)}, "x.pt"),
        *(
            Seed(f"arrays, protocol {protocol}", {"x.pkl": pickle.dumps(arrays, protocol)}, "x.pkl")
            for protocol in (0, 2, 4, 5)
        ),
        Seed("tensors, pickled", {"x.pkl": pickle.dumps(weights)}, "x.pkl"),
        Seed(
            "objects in arrays, code",
            {"x.pkl": pickle.dumps({"a": np.array([Code(canary)])})},
            "x.pkl",
        ),
        Seed("protocol 0, code", {"x.pkl": pickle.dumps({"a": Evaluated(canary)}, 0)}, "x.pkl"),
        Seed("TorchScript", {"x.pt": scripted.getvalue()}, "x.pt"),
        Seed("TorchScript, code", {"x.pt": changed(scripted.getvalue(), "data.pkl", evil)}, "x.pt"),
        Seed("exported", {"x.pt2": exported.getvalue()}, "x.pt2"),
        Seed("exported, older", {"x.pt2": older.getvalue()}, "x.pt2"),
        Seed(
            "exported, code",
            {"x.pt2": changed(older.getvalue(), "state_dict.pt", saved({"x": Code(canary)}))},
            "x.pt2",
        ),
        Seed("bomb: terabytes", {"x.pkl": claims}, "x.pkl"),
        Seed("bomb: 10,000 deep", {"x.pkl": deep}, "x.pkl"),
        Seed("bomb: memo", {"x.pkl": _doubled()}, "x.pkl"),
        Seed("bomb: shared", {"x.pkl": _shared()}, "x.pkl"),
        Seed(
            "bomb: entries",
            {
                "x.pkl": b"\x80\x02cm\nR\nq\0"
                + b"h\0)\x81(" * 200
                + keys
                + b"u"
                + b"0h\0)\x81" * 900
                + b"."
            },
            "x.pkl",
        ),
    ]


def _doubled() -> bytes:
    """Lists that hold the one before sixteen times, by the memo: 16**50 ways to the innermost."""
    stage = b"]q\x01(" + b"h\0" * 16 + b"eq\0"
    return b"\x80\x02]q\0" + stage * 50 + b"."


def _shared() -> bytes:
    """Dicts of dicts, each twice in the next: 2**60 ways to the innermost."""
    node: Any = {"lr": 0.1}
    for _ in range(60):
        node = {"args": node, "config": argparse.Namespace(a=node, b=node)}
    return pickle.dumps(node)


def seeds(canary: Path) -> list[Seed]:
    """A checkpoint of every format; some of them make `canary` if they are loaded as pickles."""
    import numpy as np
    import torch
    from safetensors.torch import save

    generator = torch.Generator().manual_seed(0)
    base = torch.randn(4, 6, generator=generator)
    weights: dict[str, Any] = {
        "0.weight": torch.randn(5, 3, generator=generator),
        "0.bias": torch.randn(5, generator=generator).to(torch.bfloat16),
        "1.weight": base[:, 1:4].T,
        "1.shared": base[:, 1:4].T,
        "2.count": torch.tensor(3),
        "2.small": torch.randn(7, generator=generator).to(torch.float8_e4m3fn),
    }
    training = {
        "epoch": 3,
        "state_dict": {f"module.{key}": value for key, value in weights.items()},
        "optimizer": {
            "state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.ones(5, 3)}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0]}],
        },
    }

    def saved(value: Any, **options: Any) -> bytes:
        file = io.BytesIO()
        torch.save(value, file, **options)
        return file.getvalue()

    old = {"_use_new_zipfile_serialization": False}
    plain = {key: value.contiguous().clone() for key, value in weights.items()}
    arrays = {"0.weight": np.ones((5, 3), np.float32), "1.bias": np.ones(5, ">f8", order="F")}
    halves = [dict(list(plain.items())[:3]), dict(list(plain.items())[3:])]

    def sharded(suffix: str, write: Callable[[Any], bytes]) -> dict[str, bytes]:
        import json

        names = [f"model-{part}.{suffix}" for part in (1, 2)]
        listed = {key: name for name, half in zip(names, halves, strict=True) for key in half}
        index = json.dumps({"metadata": {}, "weight_map": listed}).encode()
        parts = {name: write(half) for name, half in zip(names, halves, strict=True)}
        return {"model.index.json": index, **parts}

    found = [
        Seed("zip", {"x.pt": saved(weights)}, "x.pt"),
        Seed("zip, training", {"x.ckpt": saved(training)}, "x.ckpt"),
        Seed("zip, protocol 4", {"x.pt": saved(weights, pickle_protocol=4)}, "x.pt"),
        Seed("zip, code", {"x.pt": saved({**weights, "x": Code(canary)})}, "x.pt"),
        Seed("zip, compressed", {"x.pt": _compressed(saved(training))}, "x.pt"),
        Seed("legacy", {"x.pth": saved(weights, **old)}, "x.pth"),
        Seed("legacy, training", {"x.pth": saved(training, **old)}, "x.pth"),
        Seed("legacy, code", {"x.pth": saved({**weights, "x": Evaluated(canary)}, **old)}, "x.pth"),
        Seed("pickle, code", {"x.bin": pickle.dumps({"x": Code(canary)}, 2)}, "x.bin"),
        Seed("safetensors", {"x.safetensors": save(plain)}, "x.safetensors"),
        Seed("index, safetensors", sharded("safetensors", save), "model.index.json"),
        Seed("index, torch", sharded("bin", saved), "model.index.json"),
        Seed("npz", {"x.npz": _npz(np.savez, arrays)}, "x.npz"),
        Seed("npz, compressed", {"x.npz": _npz(np.savez_compressed, arrays)}, "x.npz"),
        Seed(
            "npz, code",
            {"x.npz": _npz(np.savez, {"x": np.array([Code(canary)], dtype=object)})},
            "x.npz",
        ),
    ]
    parts = _distributed({"model": plain, "optimizer": training["optimizer"], "epoch": 3})
    evil = {**parts, ".metadata": pickle.dumps({"x": Code(canary)})}
    return [*found, Seed("DCP", parts, ""), Seed("DCP, code", evil, ""), *more_seeds(canary)]


def _npz(save: Callable[..., None], arrays: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def _compressed(archive: bytes) -> bytes:
    file = io.BytesIO()
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new,
        zipfile.ZipFile(io.BytesIO(archive)) as old,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return file.getvalue()


def _distributed(state: dict[str, Any]) -> dict[str, bytes]:
    import torch.distributed.checkpoint as distributed

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process is enough
        distributed.save(state, checkpoint_id=folder, no_dist=True)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


# Damage


def damaged(seed: Seed, others: list[Seed], chance: random.Random) -> dict[str, bytes]:
    """The files of a checkpoint, one of them damaged once or a few times."""
    files = dict(seed.files)
    name = chance.choice(sorted(files))
    content = files[name]
    if chance.random() < 0.5:
        files[name] = bytes(_worked_on(content, others, chance))
    elif content.startswith(b"PK"):
        files[name] = _inside_archive(content, others, chance)
    else:
        files[name] = _inside_header(content, others, chance)
    return files


def _worked_on(content: bytes, others: list[Seed], chance: random.Random) -> bytearray:
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        chance.choice(KINDS)(data, others, chance)
    return data


def _inside_archive(content: bytes, others: list[Seed], chance: random.Random) -> bytes:
    """One member of the archive is damaged, and the archive is right."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        names = old.namelist()
        pickles = [name for name in names if name.endswith("data.pkl")]
        chosen = chance.choice([*names, *pickles * len(names)])
        for name in names:
            member = old.read(name)
            if name == chosen:
                member = bytes(_worked_on(member, others, chance))
            new.writestr(name, member, old.getinfo(name).compress_type)
    return file.getvalue()


def _inside_header(content: bytes, others: list[Seed], chance: random.Random) -> bytes:
    """The header of safetensors is damaged, and its length is right; other files anywhere."""
    end = 8 + int.from_bytes(content[:8], "little")
    if end > len(content):
        return bytes(_worked_on(content, others, chance))
    header = bytes(_worked_on(content[8:end], others, chance))
    return len(header).to_bytes(8, "little") + header + content[end:]


def _flip(data: bytearray, _: Any, chance: random.Random) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _byte(data: bytearray, _: Any, chance: random.Random) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.randrange(256)


def _cut(data: bytearray, _: Any, chance: random.Random) -> None:
    del data[chance.randrange(len(data) + 1) :]


def _remove(data: bytearray, _: Any, chance: random.Random) -> None:
    start = chance.randrange(len(data) + 1)
    del data[start : start + chance.randrange(64)]


def _repeat(data: bytearray, _: Any, chance: random.Random) -> None:
    start = chance.randrange(len(data) + 1)
    data[start:start] = data[start : start + chance.randrange(256)]


def _splice(data: bytearray, others: list[Seed], chance: random.Random) -> None:
    other = chance.choice(list(chance.choice(others).files.values()))
    begin = chance.randrange(len(other) + 1)
    start = chance.randrange(len(data) + 1)
    length = chance.randrange(512)
    data[start : start + chance.choice((0, length))] = other[begin : begin + length]


def _length(data: bytearray, _: Any, chance: random.Random) -> None:
    """A number of some width becomes another, where it may be a length."""
    form, width = chance.choice((("<H", 2), ("<I", 4), ("<Q", 8), (">I", 4)))
    # Lengths are at the beginning (safetensors), at the end (zip), or anywhere (pickles).
    near = min(len(data), 128)
    low = chance.choice((0, 0, max(0, len(data) - near)))
    high = chance.choice((near, len(data), len(data)))
    if high - low <= width:
        return
    number = chance.choice((*NUMBERS, chance.randrange(1 << 16))) % (1 << 8 * width)
    start = chance.randrange(low, high - width)
    struct.pack_into(form, data, start, number)


def _instruction(data: bytearray, _: Any, chance: random.Random) -> None:
    """A byte of a pickle becomes an instruction, or a name is put in."""
    start = max(data.find(b"\x80\x02"), data.find(b"\x80\x04"), 0)
    if start >= len(data):
        return
    at = chance.randrange(start, min(len(data), start + 2048))
    if chance.random() < 0.3:
        data[at:at] = chance.choice(GLOBALS) + chance.choice((b"", b")R", b"\x8c\x02ls\x85R"))
    else:
        data[at] = chance.choice(CODES)


def _digit(data: bytearray, _: Any, chance: random.Random) -> None:
    """A number in a text (JSON, a NumPy header) becomes another."""
    digits = [index for index, byte in enumerate(data[:4096]) if 0x30 <= byte <= 0x39]
    if digits:
        at = chance.choice(digits)
        data[at : at + 1] = str(chance.choice((*NUMBERS, -1, 10**30))).encode()


KINDS = (_flip, _byte, _cut, _remove, _repeat, _splice, _length, _length, _instruction, _digit)


# Examination


def examine(folder: Path, opened: str) -> str:
    """Open, plan and read a checkpoint; "read", or the name of the ConversionError.

    Raises:
        Exception: anything else than a ConversionError of one line.
    """
    from converters import plan
    from converters.checkpoint import nonfinite, open_checkpoint
    from converters.errors import ConversionError

    path = folder / opened if opened else folder
    try:
        checkpoint = open_checkpoint(path)
        plan(path, model=_model())
        plan(path)
        json.dumps(dict(checkpoint.options))
        for key in checkpoint.infos:
            nonfinite(checkpoint.read(key))
            checkpoint.release(key)
        _read_all(checkpoint.training, 0)
    except ConversionError as error:
        if len(str(error).splitlines()) != 1 or not str(error).isprintable():
            raise RuntimeError(f"a message of several lines: {str(error)!r}") from error
        return type(error).__name__
    return "read"


def _model() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(4, 3, bias=False))


def _read_all(value: Any, depth: int) -> None:
    from converters.checkpoint import LazyTensor

    if depth > 20:
        return
    if isinstance(value, LazyTensor):
        value.read()
        value.release()
    elif isinstance(value, Mapping):
        for item in list(value.values())[:100]:
            _read_all(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value[:100]:
            _read_all(item, depth + 1)


def _work(channel: Connection, jobs: list[tuple[int, int]], seed: int, canary: Path) -> None:
    """Examine the files; say which one is next before, and what became of it after."""
    warnings.simplefilter("ignore")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    at_start = _peak()
    events: list[str] = []
    watching = [False]

    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        if watching[0] and (
            event in FORBIDDEN_EVENTS
            or (
                event == "open"
                and isinstance(arguments[1], str)
                and set("wax+") & set(arguments[1])
            )
        ):
            events.append(f"{event} {str(arguments[0])[:80]}")

    sys.addaudithook(listen)
    everything = _SEEDS
    for index, which in jobs:
        channel.send(index)
        chosen = everything[which]
        files = damaged(chosen, everything, random.Random(f"{seed}:{index}"))
        with tempfile.TemporaryDirectory() as place:
            _written(Path(place), files)
            events.clear()
            watching[0] = True
            try:
                what, failure = examine(Path(place), chosen.opened), ""
            except BaseException:
                watching[0] = False
                what, failure = "failure", traceback.format_exc(limit=-4)
            watching[0] = False
        peak = _peak() - at_start
        if events:
            what, failure = "failure", f"Python reported {', '.join(sorted(set(events)))}"
        if canary.exists():
            what, failure = "failure", "the canary exists: something was executed"
        if peak > MEMORY:
            what, failure = "failure", f"it took {peak >> 20} MB"
        channel.send(Outcome(chosen.form, what, failure))
        if peak > MEMORY:
            return
    channel.send(None)


def _peak() -> int:
    """The most memory that the process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _written(folder: Path, files: Mapping[str, bytes]) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)


_SEEDS: list[Seed] = []


def run(
    files: int,
    seed: int,
    canary: Path,
    report: Callable[[int, Outcome], None],
    forms: str = "",
) -> None:
    """Damage and examine so many files; `report` gets the number and the outcome of each.

    Args:
        files: how many.
        seed: of what is random.
        canary: the file that code in them would make.
        report: called with the number and the outcome of each.
        forms: a regular expression for the names of the formats.
    """
    _SEEDS[:] = [one for one in seeds(canary) if re.search(forms, one.form)]
    with tempfile.TemporaryDirectory() as place:
        for first in _SEEDS:  # what is imported and built on first use, before anyone listens
            _written(Path(place), first.files)
            outcome = examine(Path(place), first.opened)
            if (outcome == "CheckpointHoldsCodeError") is not first.form.endswith(", code"):
                raise RuntimeError(f"{first.form}, undamaged: {outcome}")
            if outcome != "read" and not first.form.endswith(", code") and "bomb" not in first.form:
                raise RuntimeError(f"{first.form}, undamaged: {outcome}")
    context = multiprocessing.get_context("fork")
    todo = [(index, index % len(_SEEDS)) for index in range(files)]
    while todo:
        batch, rest = todo[:TOGETHER], todo[TOGETHER:]
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, batch, seed, canary))
        process.start()
        theirs.close()
        done, unfinished = _follow(ours, process, report)
        process.kill()
        process.join()
        if unfinished is not None:
            chosen = _SEEDS[batch[done][1]]
            report(batch[done][0], Outcome(chosen.form, "failure", unfinished))
            done += 1
        todo = batch[done:] + rest


def _follow(
    channel: Connection, process: Any, report: Callable[[int, Outcome], None]
) -> tuple[int, str | None]:
    """How many files of a batch were examined, and what ended the process before its time."""
    done = 0
    current = -1
    try:
        while channel.poll(SECONDS + 50 * (current < 0)):
            message = channel.recv()
            if message is None:
                return done, None
            if isinstance(message, Outcome):
                report(current, message)
                done += 1
            else:
                current = message
    except EOFError:
        process.join()
        # It ends itself after a file that took too much memory; that one is reported already.
        return done, None if process.exitcode == 0 else f"the process died ({process.exitcode})"
    return done, f"it takes more than {SECONDS} s"


def main() -> int:
    """Run, and print what became of the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--files", type=int, default=49_200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--forms", default="", help="those whose names match this only")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    failures: list[tuple[int, Outcome]] = []
    start = time.monotonic()

    def report(index: int, outcome: Outcome) -> None:
        counts.setdefault(outcome.form, Counter())[outcome.what] += 1
        if outcome.failure:
            failures.append((index, outcome))
            print(f"{index} {outcome.form}: {outcome.failure}", flush=True)
        elif index % 2000 == 1999:
            print(
                f"{index + 1} files, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True
            )

    with tempfile.TemporaryDirectory() as folder:
        canary = Path(folder) / "canary"
        run(options.files, options.seed, canary, report, options.forms)
        executed = canary.exists()
    kinds = sorted({kind for counter in counts.values() for kind in counter})
    total: Counter[str] = Counter()
    for form, counter in counts.items():
        total.update(counter)
        print(
            f"{form:24}" + ", ".join(f"{kind} {counter[kind]}" for kind in kinds if counter[kind])
        )
    print(f"{'all':24}" + ", ".join(f"{kind} {total[kind]}" for kind in kinds))
    print(
        f"{total.total()} files, {time.monotonic() - start:.0f} s, {len(failures)} failures, "
        f"canary {'MADE' if executed else 'not made'}"
    )
    what = f"{total.total():,} mutated files, seed {options.seed} {options.forms}".strip()
    result = f"{len(failures)} failures, canary {'made' if executed else 'not made'}"
    append(
        "weights-robust", {"figure": what, "value": f"{result}; {time.monotonic() - start:.0f} s"}
    )
    if options.keep:
        _keep(options.keep, options.seed, [index for index, _ in failures])
    return 1 if failures or executed else 0


def _keep(folder: Path, seed: int, indices: list[int]) -> None:
    for index in indices:
        chosen = _SEEDS[index % len(_SEEDS)]
        place = folder / str(index)
        place.mkdir(parents=True, exist_ok=True)
        _written(place, damaged(chosen, _SEEDS, random.Random(f"{seed}:{index}")))


if __name__ == "__main__":
    sys.exit(main())
