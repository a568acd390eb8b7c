"""What a conversion can fail with: each error is one line for the user, exit code 2.

The docstring of each class is its help page: cause, then remedy.
"""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from typing import Any


class ConversionError(Exception):
    """The checkpoint could not be converted.

    Args:
        what: what went wrong, and where (file, line), in one line.
        remedy: what the user can do about it, in one line.
    """

    def __init__(self, what: str, remedy: str) -> None:
        # Messages of other libraries and file names may hold line breaks; ours is one line always.
        self.what = _one_line(what)
        self.remedy = _one_line(remedy)
        super().__init__(f"{self.what}; {self.remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Come out of another process as it went in: the arguments of subclasses are not these two."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


def _one_line(text: str) -> str:
    """Without line breaks, and with escapes for what a terminal would obey or could not show."""
    line = " ".join(text.split())
    return line if line.isprintable() else ascii(line)[1:-1]


class PlanningError(ConversionError):
    """The process that plans a conversion died before it had a plan.

    Cause: it was killed, for want of memory perhaps, or the code of the model ended it.

    Remedy: make room, or say what each key is by `--mapping`, which needs no model.
    """


class CheckpointNotFoundError(ConversionError):
    """There is no checkpoint at the path: nothing at all, or a folder that holds none.

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
    """The file is no complete checkpoint: empty, truncated, unreadable or of an unknown format.

    Remedy: copy or download the file again and compare its size with the original's.
    """


class CheckpointHoldsCodeError(ConversionError):
    """The file is a pickle that names what has an effect when it is called: loaded elsewhere, it would run.

    Nothing of it was executed. Objects of classes that are merely unknown are no reason for this: they are
    passed over.

    Remedy: do not load it with another program either. Of a file of one's own save the weights alone:
    `safetensors.torch.save_model(model, "model.safetensors")` or
    `torch.save(model.state_dict(), "model.pt")`.
    """


class NotAStateDictError(ConversionError):
    """The file was read, but what is in it is not a mapping of names to plain dense tensors.

    Remedy: for a training checkpoint, name the entry that holds the weights (`key="model"`); else
    save `model.state_dict()`.
    """


class UnsupportedDtypeError(ConversionError):
    """A tensor has an element type that the chosen format, or numpy, cannot hold exactly.

    Remedy: choose the other format, or cast this tensor before saving the checkpoint.
    """


class ModelLoadError(ConversionError):
    """The model could not be built: module or attribute not found, or the factory raised.

    Remedy: check that `python -c "from pkg.mod import factory; factory()"` gives an `nn.Module`
    in the current directory.
    """


class MissingDependencyError(ConversionError):
    """A framework that this step needs is not installed.

    Remedy: install the extra that the message names, e.g. `pip install '.[torch]'` in a clone.
    """


class RemoteError(ConversionError):
    """A hub, bucket or server refuses, does not answer, or has another file by now than when it was opened.

    No message holds a token, a password or the query of a URL.

    Remedy: as the message says: credentials, a permission, another revision, or try again.
    """


class UnreachableError(RemoteError):
    """A hub, bucket or server gave no answer, or none that helps, however often it was asked.

    Remedy: check the network, or try again later.
    """


class HostsError(ConversionError):
    """Processes of several hosts do not do one conversion together: one died or failed, did not come, or was
    started with other words.

    Nothing that looks complete was left. Remedy: start the same command on every host; after a failure with
    `--resume`.
    """


class OutputError(ConversionError):
    """The output could not be written: it exists, or its folder is missing, full or read-only.

    Nothing that looks like a complete output was left. Remedy: choose another output path, or
    overwrite it (`--force`).
    """


class KeptFileError(ConversionError):
    """The file beside a pytree (`NAME.torch.safetensors`) is not there, damaged, or another pytree's.

    It holds what the pytree cannot give back: keys, prefixes, buffers that Flax has no use for.

    Remedy: pass `--model`, whose module says which keys there are, or convert the checkpoint again.
    """


class MisfitError(ConversionError):
    """Arrays are not those that the other side wants: missing, extra, of another shape, or ambiguous.

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
    """What was given as `--assume` cannot be understood.

    Remedy: `REGEX=Kind` (the regular expression matches a module's whole path or a whole key),
    `REGEX=MultiheadAttention(heads=8)`, `REGEX: heads=8` or `heads=8`.
    """


class MappingFileError(ConversionError):
    """A mapping file is not valid, or does not fit the checkpoint.

    All that is wrong is in `problems`, each with its line; the message shows the first few.

    Remedy: edit the file, or write it anew with `--save-mapping`.
    """

    SHOWN = 5

    def __init__(self, path: str, problems: Sequence[str], remedy: str) -> None:
        shown = "; ".join(problems[: self.SHOWN])
        more = f" and {len(problems) - self.SHOWN} more" if len(problems) > self.SHOWN else ""
        super().__init__(f"{path}: {shown}{more}", remedy)
        self.problems = tuple(problems)


class OptimizerError(ConversionError):
    """The state of an optimizer cannot be carried over: an optimizer that is not known, parameters whose
    order the state does not tell, or arrays that the optax state does not have.

    Remedy: give the parameters' names in the order of the optimizer (`order=`), or which optimizer it is
    (`optimizer="adamw"`); take the optax call that the report names.
    """


class NotFiniteError(ConversionError):
    """Some numbers of the checkpoint are NaN or infinite, and that was to fail (`--fail-on-nonfinite`).

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
    """The Flax model to fit to could not be built abstractly, or its inputs are not known.

    Remedy: name a linen or nnx module or a function that gives one, and for linen the inputs of `init`.
    """


class ShardingError(ConversionError):
    """The mesh or the sharding rules are not valid, or do not fit the arrays.

    All that is wrong is in `problems`, those of the rules' file with their lines; the message shows the first
    few.

    Remedy: a mesh is `data=4,model=2`; a rule is a regular expression and, for each axis of the arrays whose
    paths it matches, the mesh axis to cut it along, several of them, or null. The sides must be divisible.
    """

    SHOWN = 5

    def __init__(self, problems: Sequence[str], remedy: str) -> None:
        more = f" and {len(problems) - self.SHOWN} more" if len(problems) > self.SHOWN else ""
        super().__init__(f"{'; '.join(problems[: self.SHOWN])}{more}", remedy)
        self.problems = tuple(problems)


class RefusedKeysError(ConversionError):
    """Some keys have no place in the model, or the model needs keys that are not there.

    All of them are in `refused`, rows of the plan (`converters.Row`); the message shows the first few.
    Nothing was written.

    Remedy: pass the model that the checkpoint was saved from, with the same configuration.
    """

    SHOWN = 5

    def __init__(self, checkpoint: str, rows: int, refused: Sequence[Any], remedy: str) -> None:
        shown = ", ".join(f"{row.key} ({row.note})" for row in refused[: self.SHOWN])
        more = f" and {len(refused) - self.SHOWN} more" if len(refused) > self.SHOWN else ""
        super().__init__(
            f"{checkpoint}: {len(refused)} of {rows} keys refused: {shown}{more}",
            remedy,
        )
        self.refused = tuple(refused)


class DuplicateKeyError(ConversionError):
    """Two keys of the checkpoint are one without the prefixes that wrappers put before them.

    Remedy: save the state dict of one model: `model.module.state_dict()` of a wrapped one.
    """


class CastError(ConversionError):
    """The element type to cast to is not a floating-point one.

    Weights as integers would be all zeros and ones.

    Remedy: choose float32, bfloat16, float16, float64 or a float8 type.
    """
