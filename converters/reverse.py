"""Conversion of a Flax pytree to a torch state dict: the way back, bit for bit if nothing changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from converters.atomic import require_writable
from converters.back.restoring import RestoredRow, Restoring, total
from converters.back.safetensors_output import write_leaves
from converters.back.sources import Example, from_mapping, from_module, misfits_of
from converters.back.torch_output import save, to_tensor
from converters.checkpoint.reader import Checkpoint
from converters.errors import KeptFileError, MisfitError, ModelLoadError, OutputError
from converters.kept import Kept, kept_path, read_kept
from converters.model import describe_config, load_config_model, load_model, require_module
from converters.output.arrays import PytreeLike, open_arrays

TorchFormat = Literal["safetensors", "pt"]


@dataclass(frozen=True)
class Reversal:
    """Restored state dict, or the plan of one.

    Attributes:
        source: the pytree.
        rows: one row per key, in the order of the state dict.
        notes: other notes, one line each.
        output: the file written; None for a dry run.
        format: "safetensors" or "pt".
    """

    source: str
    rows: tuple[RestoredRow, ...]
    notes: tuple[str, ...]
    output: Path | None
    format: TorchFormat

    @property
    def counts(self) -> Mapping[str, int]:
        """Origin → number of keys."""
        return total(self.rows)

    @property
    def parameters(self) -> int:
        """Number of elements, counting tied tensors once."""
        return sum(row.info.size for row in self.rows if row.origin != "tied")

    @property
    def size(self) -> int:
        """Number of bytes, counting tied tensors once."""
        return sum(row.info.nbytes for row in self.rows if row.origin != "tied")


def to_torch(
    source: Path | str,
    *,
    output: Path | str | None = None,
    format: TorchFormat | None = None,  # noqa: A002 (the word users know)
    model: Any = None,
    example: Example = None,
    mapping: Path | str | None = None,
    kept: Path | str | None = None,
    original_dtype: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
) -> Reversal:
    """Write the torch state dict that a Flax pytree was made from, or that its module has.

        to_torch("net.flax.safetensors", output="net.pt")

    Args:
        source: the pytree: safetensors, msgpack, or a folder of orbax.
        output: the file to write; None: `NAME.restored.safetensors` (or `.pt`) in the current
            directory. Safetensors is written in bounded memory, `.pt` needs it for all.
        format: None for the format in the output's name (`.pt`, `.pth`, `.bin`), else safetensors.
        model: the torch module, as `pkg.mod:factory`, `file.py:factory`, a Hugging Face folder or
            an `nn.Module`: for pytrees without a file beside them. It takes precedence over that file.
        example: the shapes of the model's inputs, if they were passed to the conversion.
        mapping: a mapping file with the array of each key of the model; None to use its layers.
        kept: the file that was written beside the pytree; None for `NAME.torch.safetensors` there.
        original_dtype: cast values back to torch's dtype if the conversion cast the arrays;
            otherwise the arrays' dtype is kept. The digits lost by the cast stay lost.
        overwrite: whether an existing output may be replaced.
        dry_run: only report what would be written.

    Raises:
        KeptFileError: no file lies beside the pytree and no model is given, or it is damaged or
            another pytree's.
        MisfitError: the arrays are not those of the model.
        ConversionError: a file cannot be read or written; the subclass gives the reason.
    """
    path = Path(source)
    target, format = _requested_output(path, output, format)  # noqa: A001
    if not dry_run:
        require_free(path, output, format, overwrite=overwrite)
    record, restoring = _open(path, model, example, kept, original_dtype, mapping)
    done = Reversal(str(path), restoring.rows, record.notes, target, format)
    if dry_run:
        return Reversal(str(path), restoring.rows, record.notes, None, format)
    if format == "pt":
        save(target, _tensors(record, restoring), overwrite=overwrite)
    else:
        write_leaves(target, restoring.leaves(), {"format": "pt"}, overwrite=overwrite)
    return done


def to_state_dict(
    source: PytreeLike,
    *,
    model: Any = None,
    example: Example = None,
    kept: Path | str | None = None,
    original_dtype: bool = False,
) -> dict[str, Any]:
    """Return the torch state dict itself, with shared tied tensors; write nothing.

    Args:
        source: a pytree on disk or in memory (`{"params": …}`, or nnx's pure dict).
        model, example, kept, original_dtype: as for `to_torch`; a pytree in memory needs the model or `kept`.

    Raises:
        KeptFileError, MisfitError, ConversionError: as `to_torch`.
    """
    return _tensors(*_open(source, model, example, kept, original_dtype))


def by_torch_names(tree: Any, kept: Path) -> dict[str, Any]:
    """Return the arrays that torch knows of a tree that has others too, by torch's names and in its layouts.

    Args:
        tree: a pytree in memory, `{"params": …}`.
        kept: the file that has what the way back to torch needs beside the arrays.
    """
    from flax.traverse_util import flatten_dict, unflatten_dict

    known = {leaf.path for leaf in read_kept(kept).leaves}
    flat = flatten_dict(tree, sep="/")
    arrays = unflatten_dict({n: np.asarray(x) for n, x in flat.items() if n in known}, sep="/")
    return {name: np.asarray(x) for name, x in to_state_dict(arrays, kept=kept).items()}


def require_free(
    source: Path | str,
    output: Path | str | None,
    format: TorchFormat | None = None,  # noqa: A002 (as in to_torch)
    *,
    overwrite: bool = False,
) -> None:
    """Check whether `to_torch` may write its output, for callers with much work before the call.

    Raises:
        OutputError: the output may not be written.
    """
    path = Path(source)
    target, _ = _requested_output(path, output, format)
    require_writable(target, overwrite=overwrite)
    if target.resolve() in (path.resolve(), kept_path(path).resolve()):
        raise OutputError(f"{target} is the pytree itself", "choose another output")


def _requested_output(
    source: Path, output: Path | str | None, form: TorchFormat | None
) -> tuple[Path, TorchFormat]:
    if form is None:
        suffix = "" if output is None else Path(output).suffix
        form = "pt" if suffix in (".pt", ".pth", ".bin", ".ckpt") else "safetensors"
    return default_output(source, form) if output is None else Path(output), form


def default_output(source: Path, format: TorchFormat) -> Path:  # noqa: A002 (as in to_torch)
    """Return `NAME.restored.safetensors` or `NAME.restored.pt` in the current directory."""
    name = source.resolve().name
    for suffix in (".safetensors", ".msgpack", ".orbax", ".flax"):
        name = name.removesuffix(suffix)
    return Path(f"{name}.restored.{format}")


def default_optimizer_output(output: Path) -> Path:
    """Return `NAME.opt.pt` beside a restored state dict: the state of its optimizer."""
    return output.with_name(f"{output.stem}.opt.pt")


def _tensors(kept: Kept, restoring: Restoring) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    owned: dict[str, Any] = {}
    for key in kept.keys:
        owner = key.tied or key.key
        if owner not in owned:
            owned[owner] = to_tensor(restoring.read(key))
        tensors[key.stored] = owned[owner]
    return tensors


def _open(
    source: PytreeLike,
    model: Any,
    example: Example,
    kept: Path | str | None,
    original_dtype: bool,
    mapping: Path | str | None = None,
) -> tuple[Kept, Restoring]:
    arrays = open_arrays(source)
    record = _record(source, arrays, model, example, kept, mapping)
    return record, Restoring(record, arrays, original_dtype=original_dtype)


def _record(
    source: PytreeLike,
    arrays: Checkpoint,
    model: Any,
    example: Example,
    kept: Path | str | None,
    mapping: Path | str | None,
) -> Kept:
    if mapping is not None:
        if model is None:
            raise KeptFileError(
                f"{mapping} maps keys, but does not list them",
                "pass the torch module: --model pkg.mod:factory",
            )
        return from_mapping(_model(model), arrays.infos, arrays.source, mapping)
    if model is not None:
        return from_module(_model(model), arrays.infos, arrays.source, example)
    if kept is None and isinstance(source, Mapping):
        raise KeptFileError(
            "a pytree in memory does not contain its torch keys",
            "pass the model, or the file written beside the pytree (kept)",
        )
    beside = Path(kept) if kept is not None else kept_path(Path(source))  # type: ignore[arg-type]
    if not beside.is_file():
        raise KeptFileError(
            f"{beside}, which contains the torch keys of {arrays.source}, is missing",
            "pass the torch module: --model pkg.mod:factory",
        )
    record = read_kept(beside)
    misfits = misfits_of(record, arrays.infos)
    if misfits:
        raise MisfitError(
            f"{beside} was written beside another pytree than {arrays.source}",
            misfits,
            "pass the model that the pytree belongs to",
        )
    return record


def _model(model: Any) -> Any:
    if not isinstance(model, str | Path):
        return require_module("the model", model)
    folder = Path(model)
    if not folder.is_dir():
        return load_model(str(model))
    found_model = load_config_model(folder)
    if found_model is None:
        raise ModelLoadError(describe_config(folder), "pass the torch model itself (--model)")
    return found_model
