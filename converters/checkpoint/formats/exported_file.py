"""Reader of torch.export archives (`.pt2`): their weights and constants. The graph is not run.

    torch 2.1 to 2.7    serialized_state_dict.pt, serialized_constants.pt: archives of torch.save in it
    torch 2.8           TOP/data/weights/NAME.pt, TOP/data/constants/NAME.pt: the same
    since torch 2.9     TOP/data/weights/NAME_weights_config.json, and a member for each storage beside it

https://github.com/pytorch/pytorch/blob/v2.9.1/torch/export/pt2_archive/_package.py. Only the module
classes named in the graph are read from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from converters.checkpoint.formats.legacy_file import Loaded
from converters.checkpoint.formats.torch_names import OtherTensor
from converters.checkpoint.formats.torch_zip import read_zip
from converters.checkpoint.inert.modules import RecordedModule, WithModules
from converters.checkpoint.inert.records import PickleError, printable
from converters.checkpoint.reader import COPY_AGAIN
from converters.checkpoint.stored import FileSpan, InflatedSpan, Span, Storage, StoredTensor
from converters.checkpoint.zip_archive import ZipArchive
from converters.errors import CheckpointDamagedError, NotAStateDictError

_LARGEST = 1 << 26  # maximum bytes of a JSON file
_OLD = ("serialized_state_dict", "serialized_constants")
_KINDS = ("weights", "constants")
# torch's numbers of element types (`torch._export.serde.schema.ScalarType`).
_DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
}


def is_exported(archive: ZipArchive) -> bool:
    """Whether torch.export wrote this archive."""
    return any(f"{_OLD[0]}.{suffix}" in archive.members for suffix in ("pt", "json")) or any(
        name.endswith("/archive_format") and name.count("/") == 1 for name in archive.members
    )


def read_exported(archive: ZipArchive) -> Loaded:
    """Return the state dict and the constants of each model in the archive, with lazy tensors.

    Raises:
        CheckpointDamagedError: the archive is incomplete or inconsistent.
        NotAStateDictError: the archive holds a compiled program.
        PickleError, ForbiddenNameError: a pickle in the archive cannot be read.
    """
    models = {name: _model(archive, parts) for name, parts in _models(archive).items()}
    if not models:
        if any("/data/aotinductor/" in name for name in archive.members):
            raise NotAStateDictError(
                f"{archive.file.path} was compiled by AOTInductor: its weights are in machine code",
                "save the exported program itself (torch.export.save), or the state dict",
            )
        raise CheckpointDamagedError(
            f"{archive.file.path} is an archive of torch.export without weights", COPY_AGAIN
        )
    unknown = tuple(name for _, names in models.values() for name in names)
    values = {name: value for name, (value, _) in models.items()}
    return Loaded(values if len(values) > 1 else next(iter(values.values())), unknown)


def _models(archive: ZipArchive) -> dict[str, dict[str, str]]:
    """Return the members of each model: name → "weights", "constants" or "graph" → member."""
    models: dict[str, dict[str, str]] = {}
    for old, kind in zip(_OLD, _KINDS, strict=True):
        for suffix in ("json", "pt"):
            if f"{old}.{suffix}" in archive.members:
                models.setdefault("model", {})[kind] = f"{old}.{suffix}"
    if "serialized_exported_program.json" in archive.members:
        models.setdefault("model", {})["graph"] = "serialized_exported_program.json"
    for member in archive.members:
        _, _, path = member.partition("/")
        folder, _, name = path.rpartition("/")
        for kind in _KINDS:
            if folder == f"data/{kind}":
                for end in (f"_{kind}_config.json", ".pt"):
                    if name.endswith(end):
                        models.setdefault(name.removesuffix(end), {})[kind] = member
        if folder == "models" and name.endswith(".json"):
            models.setdefault(name.removesuffix(".json"), {})["graph"] = member
    return {name: parts for name, parts in models.items() if set(parts) & set(_KINDS)}


def _model(archive: ZipArchive, parts: Mapping[str, str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    read: dict[str, Any] = {}
    unknown: tuple[str, ...] = ()
    for kind, entry in zip(_KINDS, ("state_dict", "constants"), strict=True):
        member = parts.get(kind)
        if member is None:
            continue
        if member.endswith("_config.json"):
            read[entry] = _stored(archive, member)
        else:
            loaded = _saved(archive, member)
            read[entry] = loaded.value
            unknown += loaded.unknown
    weights = read.get("state_dict")
    if type(weights) is dict and "graph" in parts:
        read["state_dict"] = WithModules(weights, _modules(_json(archive, parts["graph"])))
    return read, unknown


def _saved(archive: ZipArchive, name: str) -> Loaded:
    """Return the contents of a torch.save archive that is a member of this archive."""
    member = archive.members[name]
    if not member.stored:
        raise CheckpointDamagedError(
            f"{archive.file.path}: {name!a} is compressed", "save it without compression"
        )
    if not member.size:  # nothing was saved
        return Loaded({})
    start = archive.content_start(member)
    return read_zip(ZipArchive(archive.file, start, start + member.size))


def _json(archive: ZipArchive, name: str) -> Any:
    try:
        return json.loads(archive.content(name, _LARGEST).decode("utf-8"))
    except (ValueError, RecursionError):
        raise PickleError(f"{name[:80]!a} is not JSON") from None


def _stored(archive: ZipArchive, name: str) -> dict[str, Any]:
    """Return the tensors of a list, each stored as a part of a member beside it."""
    folder = name.rpartition("/")[0]
    spans: dict[str, Span] = {}
    tensors: dict[str, Any] = {}
    listed = _json(archive, name)
    entries = listed.get("config") if isinstance(listed, dict) else None
    if not isinstance(entries, dict):
        raise PickleError(f"{name[:80]!a} lists no tensors")
    for key, entry in entries.items():
        try:
            place, meta = entry["path_name"], entry["tensor_meta"]
            if entry["use_pickle"] or meta is None:
                tensors[key] = OtherTensor("a tensor of a class of its own")
                continue
            member = f"{folder}/{place}"
            if member not in spans:
                spans[member] = _span(archive, member)
            tensors[key] = _tensor(spans[member], meta)
        except (KeyError, TypeError, ValueError) as error:
            raise PickleError(f"{key[:80]!a} of {name[:80]!a}: {str(error)[:120]}") from None
    return tensors


def _span(archive: ZipArchive, name: str) -> Span:
    member = archive.members[name]
    if member.stored:
        return FileSpan(archive.file, archive.content_start(member), member.size)
    return InflatedSpan(archive, member)


def _tensor(span: Span, meta: Mapping[str, Any]) -> Any:
    dtype = _DTYPES.get(meta["dtype"])
    if dtype is None:
        return OtherTensor(f"a tensor of the element type number {meta['dtype']}")
    shape, strides = _numbers(meta["sizes"]), _numbers(meta["strides"])
    (offset,) = _numbers([meta["storage_offset"]])
    return StoredTensor(Storage(span, 0, span.nbytes, dtype), offset, shape, strides, dtype)


def _numbers(sides: Any) -> tuple[int, ...]:
    return tuple(side["as_int"] for side in sides)


def _modules(program: Any) -> dict[str, RecordedModule]:
    """Return path → class of the modules that have run, according to the graph's calls."""
    modules: dict[str, RecordedModule] = {}
    for stack in _stacks(program):
        for step in stack.split(";"):
            parts = step.split(",")
            if len(parts) == 3:
                path = parts[1].removeprefix("L['self']").removeprefix(".")
                modules.setdefault(path, RecordedModule(printable(parts[2]), complete=False))
    return modules


def _stacks(program: Any) -> Iterator[str]:
    try:
        nodes = program["graph_module"]["graph"]["nodes"]
        for node in nodes:
            stack = node["metadata"].get("nn_module_stack")
            if isinstance(stack, str):
                yield stack
    except (KeyError, TypeError, AttributeError):
        return  # the graph does not mention modules
