"""Errors of a conversion, each one line for the user, with exit code 2.

The docstring of each class is its help page: cause, then remedy.
"""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from typing import Any


class ConversionError(Exception):
    """The checkpoint could not be converted.

    Args:
        what: the problem and its location (file, line), in one line.
        remedy: the remedy for the user, in one line.
    """

    def __init__(self, what: str, remedy: str) -> None:
        # Messages of other libraries and file names may contain line breaks; this message is always
        # one line.
        self.what = _one_line(what)
        self.remedy = _one_line(remedy)
        super().__init__(f"{self.what}; {self.remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message: the arguments of subclasses differ from these two."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


def _one_line(text: str) -> str:
    """Return the text without line breaks, and with escapes for control and unprintable characters."""
    line = " ".join(text.split())
    return line if line.isprintable() else ascii(line)[1:-1]


class PlanningError(ConversionError):
    """The process that plans a conversion died before it finished the plan.

    Cause: it was killed, possibly for lack of memory, or the model's code ended it.

    Remedy: free memory, or use `--mapping`, which needs no model.
    """


class CheckpointNotFoundError(ConversionError):
    """There is no checkpoint at the path: the path is missing, or a folder without a checkpoint.

    Remedy: name the checkpoint file itself, or a folder with `model.safetensors` or
    `pytorch_model.bin` (or their `.index.json`) in it.
    """


class CheckpointInMemoryError(ConversionError):
    """`convert` reads a checkpoint from a file, a folder or a URL, and got an object in memory.

    Cause: `convert(model.state_dict())` or `convert(model)`.

    Remedy: `convert_to_pytree(model.state_dict(), model=model)` returns the pytree; to write a file, save
    the state dict with `torch.save` first.
    """


class CheckpointDamagedError(ConversionError):
    """The file is not a complete checkpoint: empty, truncated, unreadable or of an unknown format.

    Remedy: copy or download the file again and compare its size with the original's.
    """


class CheckpointHoldsCodeError(ConversionError):
    """The file is a pickle that names code with an effect: loaded elsewhere, that code would run.

    Nothing was executed. Objects of merely unknown classes do not cause this error: they are
    skipped.

    Remedy: do not load the file with another program either. For your own file, save the weights
    alone: `safetensors.torch.save_model(model, "model.safetensors")` or
    `torch.save(model.state_dict(), "model.pt")`.
    """


class NotAStateDictError(ConversionError):
    """The file was read, but it does not map names to plain dense tensors.

    Remedy: for a training checkpoint, name the entry with the weights (`key="model"`); otherwise
    save `model.state_dict()`.
    """


class UnsupportedDtypeError(ConversionError):
    """A tensor has an element type that the chosen format, or numpy, cannot represent exactly.

    Remedy: choose the other format, or cast this tensor before saving the checkpoint.
    """


class ModelLoadError(ConversionError):
    """The model could not be built: module or attribute not found, or the factory raised.

    Remedy: check that `python -c "from pkg.mod import factory; factory()"` gives an `nn.Module`
    in the current directory.
    """


class MissingDependencyError(ConversionError):
    """A framework needed by this step is not installed.

    Remedy: install the extra that the message names, e.g. `pip install '.[torch]'` in a clone.
    """


class RemoteError(ConversionError):
    """A hub, bucket or server refuses, does not answer, or has replaced a file since it was opened.

    No message contains a token, a password or the query of a URL.

    Remedy: follow the message: credentials, a permission, another revision, or another try.
    """


class UnreachableError(RemoteError):
    """A hub, bucket or server gave no usable answer after several tries.

    Remedy: check the network, or try again later.
    """


class HostsError(ConversionError):
    """A conversion by several hosts failed: a process died or failed, did not come, or was started
    with other arguments.

    No output looks complete. Remedy: start the same command on every host; after a failure with
    `--resume`.
    """


class OutputError(ConversionError):
    """The output could not be written: it exists, or its folder is missing, full or read-only.

    No output looks complete. Remedy: choose another output path, or overwrite it (`--force`).
    """


class KeptFileError(ConversionError):
    """The file beside a pytree (`NAME.torch.safetensors`) is missing, damaged, or belongs to another
    pytree.

    It contains data that the pytree lacks: keys, prefixes, buffers that Flax does not use.

    Remedy: pass `--model`, whose module determines the keys, or convert the checkpoint again.
    """


class MisfitError(ConversionError):
    """Arrays do not match the other side: missing, extra, of another shape, or ambiguous.

    All of them are in `misfits`, one line each; the message shows the first few.

    Remedy: pass the model that they belong to, with the same configuration.
    """

    SHOWN = 3

    def __init__(self, what: str, misfits: Sequence[str], remedy: str) -> None:
        shown = ", ".join(misfits[: self.SHOWN])
        more = f" and {len(misfits) - self.SHOWN} more" if len(misfits) > self.SHOWN else ""
        super().__init__(f"{what}: {shown}{more}", remedy)
        self.misfits = tuple(misfits)


class AssumptionError(ConversionError):
    """The value of `--assume` is invalid.

    Remedy: `REGEX=Kind` (the regular expression matches a module's whole path or a whole key),
    `REGEX=MultiheadAttention(heads=8)`, `REGEX: heads=8` or `heads=8`.
    """


class MappingFileError(ConversionError):
    """A mapping file is not valid, or does not fit the checkpoint.

    All problems are in `problems`, each with its line; the message shows the first few.

    Remedy: edit the file, or write it again with `--save-mapping`.
    """

    SHOWN = 5

    def __init__(self, path: str, problems: Sequence[str], remedy: str) -> None:
        shown = "; ".join(problems[: self.SHOWN])
        more = f" and {len(problems) - self.SHOWN} more" if len(problems) > self.SHOWN else ""
        super().__init__(f"{path}: {shown}{more}", remedy)
        self.problems = tuple(problems)


class OptimizerError(ConversionError):
    """The state of an optimizer cannot be converted: the optimizer is unknown, the order of its
    parameters is ambiguous, or the optax state lacks arrays.

    Remedy: pass the parameters' names in the order of the optimizer (`order=`), or the optimizer
    (`optimizer="adamw"`); use the optax call named in the report.
    """


class NotFiniteError(ConversionError):
    """Some values of the checkpoint are NaN or infinite, which `--fail-on-nonfinite` forbids.

    Nothing was written. All such arrays are in `paths`.

    Remedy: take a checkpoint from before the training diverged, or convert without that option.
    """

    SHOWN = 5

    def __init__(self, output: str, paths: Sequence[str]) -> None:
        more = f" and {len(paths) - self.SHOWN} more" if len(paths) > self.SHOWN else ""
        super().__init__(
            f"{output} is not written: NaN or infinity in {', '.join(paths[: self.SHOWN])}{more}",
            "take an earlier checkpoint, or convert without --fail-on-nonfinite",
        )
        self.paths = tuple(paths)


class TargetError(ConversionError):
    """The Flax model to fit to could not be built abstractly, or its inputs are unknown.

    Remedy: name a linen or nnx module or a function that returns one, and for linen the inputs of
    `init`.
    """


class ShardingError(ConversionError):
    """The mesh or the sharding rules are invalid, or do not fit the arrays.

    All problems are in `problems`, those of the rules' file with their lines; the message shows the
    first few.

    Remedy: a mesh is `data=4,model=2`. A rule is a regular expression and, for each axis of the
    matching arrays, the mesh axis to cut it along, several mesh axes, or null. The sizes must be
    divisible.
    """

    SHOWN = 5

    def __init__(self, problems: Sequence[str], remedy: str) -> None:
        more = f" and {len(problems) - self.SHOWN} more" if len(problems) > self.SHOWN else ""
        super().__init__(f"{'; '.join(problems[: self.SHOWN])}{more}", remedy)
        self.problems = tuple(problems)


class RefusedKeysError(ConversionError):
    """Some keys have no target in the model, or the model needs keys that the checkpoint lacks.

    All of them are in `refused`, rows of the plan (`converters.Row`); the message shows the first few.
    Nothing was written.

    Remedy: pass the model that the checkpoint was saved from, with the same configuration.
    """

    SHOWN = 5

    def __init__(self, checkpoint: str, rows: int, refused: Sequence[Any], remedy: str) -> None:
        reasons: dict[str, list[str]] = {}
        for row in refused:
            reasons.setdefault(row.note, []).append(row.key)
        groups = [(why, keys[: self.SHOWN], len(keys)) for why, keys in reasons.items()]
        shown = ", ".join(
            f"{', '.join(keys)}{f' and {count - len(keys)} more' if count > len(keys) else ''} ({why})"
            for why, keys, count in groups[: self.SHOWN]
        )
        left = sum(count for _, _, count in groups[self.SHOWN :])
        more = f" and {left} more" if left else ""
        super().__init__(
            f"{checkpoint}: {len(refused)} of {rows} keys refused: {shown}{more}",
            remedy,
        )
        self.refused = tuple(refused)


class DuplicateKeyError(ConversionError):
    """Two keys of the checkpoint become equal without the prefixes of wrappers.

    Remedy: save the state dict of one model: `model.module.state_dict()` for a wrapped model.
    """


class CastError(ConversionError):
    """The element type to cast to is not a floating-point type.

    Weights cast to integers would be all zeros and ones.

    Remedy: choose float32, bfloat16, float16, float64 or a float8 type.
    """
