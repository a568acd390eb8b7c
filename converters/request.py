"""Requests for a conversion, built once and passed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from converters.checkpoint import Format
from converters.checkpoint.source import Source
from converters.mapping.paths import Api
from converters.output.stream import AHEAD_BYTES
from converters.remote.names import ResolvedName

if TYPE_CHECKING:
    from torch import nn

ModelLike: TypeAlias = "str | nn.Module | None"


@dataclass(frozen=True)
class PlanOptions:
    """Options that determine the paths of the keys.

    Attributes:
        model: the model whose module tree determines each key: `pkg.mod:factory`,
            `path/file.py:factory`, `path/file.py` or an `nn.Module` on any device. Without it, the
            `config.json` of the folder; without that the layers are inferred, and ambiguous keys
            are refused.
        example: the shapes of the model's inputs, if the rows of a Linear after a flattened
            convolution depend on them; None to try common ones.
        assume: assumptions about ambiguous inferred layers (`converters.inference.assume`):
            "tok.*=Embedding", "heads=8".
        mapping: a mapping file (`converters.mapping.file`) with the outcome of every key, instead
            of a model.
        sizes: values of the names in the mapping file's `sizes`; other names are passed over.
        key: the entry that holds the weights, in a training checkpoint of `torch.save`.
        as_stored: also convert a checkpoint that looks quantized, with its numbers unchanged; False
            to refuse it.
        trust_remote_code: run the code of a Hugging Face folder that defines its own model; False
            to refuse it, which requires a `model`.
        to: the Flax API of the paths: "linen" or "nnx"; None for the mapping file's, else linen.
        dtype: the dtype that floating-point arrays are cast to ("bfloat16"); None keeps their dtypes.
        scan: the axis along which repeated blocks are stacked, as in `nn.scan`, or None. With a
            target: the axis of its stacks, if their shapes leave it open.
        target: an existing Flax model, `pkg.mod:Model` or `file.py:Model`, whose names and
            arrangement the pytree must have; None for the names of the torch modules.
        target_inputs: `pkg.mod:function` that returns its example inputs (`converters.target.shapes`).
        drop: regular expressions of keys that the target does not need.
        keep_parts: keep the names of tensors from which torch computes a weight (pruning, a user's
            parametrization), for a Flax model that computes it at each call; False to compute the
            weight now.
    """

    model: ModelLike = None
    example: Sequence[tuple[int, ...]] | None = None
    assume: Sequence[str] = ()
    mapping: Path | str | None = None
    sizes: Mapping[str, Any] | None = None
    key: str | None = None
    as_stored: bool = False
    trust_remote_code: bool = False
    to: Api | None = None
    dtype: str | None = None
    scan: int | None = None
    target: str | None = None
    target_inputs: str | None = None
    drop: Sequence[str] = ()
    keep_parts: bool = False


class PlanKeywords(TypedDict, total=False):
    """Fields of `PlanOptions` as optional keyword arguments."""

    model: ModelLike
    example: Sequence[tuple[int, ...]] | None
    assume: Sequence[str]
    mapping: Path | str | None
    sizes: Mapping[str, Any] | None
    key: str | None
    as_stored: bool
    trust_remote_code: bool
    to: Api | None
    dtype: str | None
    scan: int | None
    target: str | None
    target_inputs: str | None
    drop: Sequence[str]
    keep_parts: bool


@dataclass(frozen=True)
class OptimizerRequest:
    """Optimizer whose state is converted too.

    Attributes:
        file: the file with its state, which may be the checkpoint itself.
        key: its entry there; None for the only one.
        kind: "adam" or "adamw", if the state does not show it (torch before 2.7).
        order: the order of its parameters, if several fit (`converters.optimizer.convert_optimizer`).
    """

    file: Path | str
    key: str | None = None
    kind: str | None = None
    order: Sequence[str] | str | None = None


@dataclass(frozen=True)
class ConversionRequest:
    """Request for a conversion. `converters.convert` has the same fields as keyword arguments.

    Attributes:
        checkpoint: a file or folder, or the name of a remote one (`converters.remote.names`).
        output: the file to write, or a URL of a bucket; None for a file in the current directory.
        format: "safetensors", "msgpack" or "orbax" (a folder); None for the format in the output's name.
        overwrite: whether an existing output may be replaced.
        resume: whether to continue an interrupted run of the same conversion.
        shard_bytes: for safetensors: the output is a folder of files of at most this number of bytes.
        mesh: for orbax: the axes of the device mesh that will restore it, "data=4,model=2".
        spec: the rules that shard arrays on the mesh (`converters.output.sharding`).
        fail_on_nonfinite: whether to write nothing if a value is NaN or infinite.
        digests: whether to compute the SHA-256 of every array.
        optimizer: the optimizer whose state is written too, or None.
        ahead_bytes: bytes of a remote checkpoint to read ahead.
        plan: the options that determine the paths of the keys.
    """

    checkpoint: Source | ResolvedName | str
    output: Source | str | None = None
    format: Format | None = None
    overwrite: bool = False
    resume: bool = False
    shard_bytes: int | None = None
    mesh: str | None = None
    spec: Path | str | None = None
    fail_on_nonfinite: bool = False
    digests: bool = False
    optimizer: OptimizerRequest | None = None
    ahead_bytes: int = AHEAD_BYTES
    plan: PlanOptions = field(default_factory=PlanOptions)
