"""What a conversion is asked for: requests that are built once and handed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypedDict

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
    """What decides the places of the keys.

    Attributes:
        model: whose tree of modules says what each key is: `pkg.mod:factory`,
            `path/file.py:factory`, `path/file.py` or an `nn.Module` on any device. Without it: the
            `config.json` of the folder; without that the layers are inferred, and what is ambiguous is
            refused.
        example: the shapes of the model's inputs, where the rows of a Linear behind a flattened
            convolution depend on them; None: found by trying.
        assume: what to take ambiguous layers for, where they are inferred
            (`converters.inference.assume`): "tok.*=Embedding", "heads=8".
        mapping: a mapping file (`converters.mapping.file`) that says what becomes of every key, instead
            of a model.
        key: the entry that holds the weights, in a training checkpoint of `torch.save`.
        as_stored: convert also what looks quantized, its numbers as they are; False: it is refused.
        trust_remote_code: run the code of a Hugging Face folder that defines its own model; False: it is
            refused, and needs a `model`.
        to: whose names the paths are made of: "linen" or "nnx"; None: the mapping file's, else linen.
        dtype: what floating-point arrays are cast to ("bfloat16"); None keeps each one's own.
        scan: the axis along which repeated blocks are stacked, as `nn.scan` wants them; None: not. With
            a target: the axis of its stacks where their shapes leave it open.
        target: a Flax model that exists, `pkg.mod:Model` or `file.py:Model`, whose names and
            arrangement the pytree is to have; None: the names of the torch modules.
        target_inputs: `pkg.mod:function` that gives its example inputs (`converters.target.shapes`).
        drop: regular expressions of keys that the target has no use for.
        keep_parts: the tensors from which torch computes a weight (pruning, a parametrization of one's own)
            keep their names, for a Flax model that computes it at each call; False: the weight is
            computed now.
    """

    model: ModelLike = None
    example: Sequence[tuple[int, ...]] | None = None
    assume: Sequence[str] = ()
    mapping: Path | str | None = None
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
    """The fields of `PlanOptions` as keyword arguments; every one may be left out."""

    model: ModelLike
    example: Sequence[tuple[int, ...]] | None
    assume: Sequence[str]
    mapping: Path | str | None
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
    """The optimizer whose state is converted too.

    Attributes:
        file: the file with its state, which may be the checkpoint itself.
        key: its entry there; None: the only one.
        kind: "adam" or "adamw", where the state does not tell (torch before 2.7).
        order: the order of its parameters, where several fit (`converters.optimizer.convert_optimizer`).
    """

    file: Path | str
    key: str | None = None
    kind: str | None = None
    order: Sequence[str] | str | None = None


@dataclass(frozen=True)
class ConversionRequest:
    """A conversion that is asked for. `converters.convert` has the same as keyword arguments.

    Attributes:
        checkpoint: a file or folder, or a name of one that lies far away (`converters.remote.names`).
        output: the file to write, or a URL of a bucket; None: a file in the current directory.
        format: "safetensors", "msgpack" or "orbax" (a folder); None: as the name of the output says.
        overwrite: whether an existing output may be replaced.
        resume: whether to continue what an interrupted run of the same conversion left.
        shard_bytes: for safetensors: the output is a folder of files of at most so many bytes.
        mesh: for orbax: the axes of the device mesh that will restore it, "data=4,model=2".
        spec: the rules by which arrays lie on the mesh (`converters.output.sharding`).
        fail_on_nonfinite: whether to write nothing if a number is NaN or infinite.
        digests: whether to compute the SHA-256 of every array.
        optimizer: the optimizer whose state is written too; None: none.
        ahead_bytes: as much of a checkpoint that lies far away is read before it is due.
        plan: what decides the places of the keys.
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
