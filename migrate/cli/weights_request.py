"""What `migrate weights` was asked for: its command line as one of two requests."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from converters.request import ConversionRequest, OptimizerRequest
    from converters.reverse import TorchFormat


@dataclass(frozen=True)
class BothModels:
    """How the target and the torch model are run, to find which weight belongs where (--inputs).

    Attributes:
        inputs: what both are run on.
        drop: regular expressions of torch's keys that the Flax model has no use for.
        unproven: whether what the runs did not confirm is written too.
        apply: the function of (params, *inputs) of a target that is no module.
        python: the interpreter that runs the Flax model.
        channels_last: inputs that it takes channels last; None: those that torch's convolutions take.
    """

    inputs: tuple[str, ...]
    drop: tuple[str, ...]
    unproven: bool
    apply: str | None
    python: str
    channels_last: tuple[str, ...] | None


@dataclass(frozen=True)
class SameValues:
    """A Flax checkpoint of the same weights, whose values say what belongs where (--values).

    Attributes:
        target: the Flax checkpoint.
        key: the entry of torch's checkpoint that holds the weights.
        as_stored: whether what looks quantized is taken as it is.
        drop: regular expressions of torch's keys that Flax has no use for.
        unproven: whether arrays that no value tells apart are taken in their order.
    """

    target: Path
    key: str | None
    as_stored: bool
    drop: tuple[str, ...]
    unproven: bool


@dataclass(frozen=True)
class ManyHosts:
    """The processes that share the conversion.

    Attributes:
        process: "I/N": which of how many this is; None: as the cluster tells.
        coordinator: "HOST:PORT" at which process 0 listens.
        wait: seconds until all must have begun.
    """

    process: str | None
    coordinator: str | None
    wait: float


@dataclass(frozen=True)
class ToFlax:
    """A torch checkpoint is to become a Flax pytree.

    Attributes:
        checkpoint: the checkpoint as the user named it.
        file: which file of a folder or repository it is.
        conversion: what is to be written, and how.
        dry_run: whether to show the plan only.
        save_mapping: the file to write what becomes of each key to.
        both_models: how both models are run first; None: they are not.
        same_values: the checkpoint to compare with first; None: none.
        hosts: the processes that share it.
    """

    checkpoint: str
    file: str | None
    conversion: ConversionRequest
    dry_run: bool
    save_mapping: Path | None
    both_models: BothModels | None
    same_values: SameValues | None
    hosts: ManyHosts


@dataclass(frozen=True)
class ToTorch:
    """A Flax pytree is to become a torch state dict.

    Attributes:
        checkpoint: the pytree.
        output: the file to write; None: one beside it.
        format: "safetensors" or "pt"; None: as the name of the output says.
        dry_run: whether to show the plan only.
        overwrite: whether an existing output may be replaced.
        model: the torch module, or, where both models are run, the Flax one.
        example: the shapes of the model's inputs.
        mapping: a mapping file that says what each key is.
        target: the torch module to fit to; None: what the pytree was made from.
        both_models: how both models are run first; None: they are not.
        optimizer: an optax state that is to become torch's.
    """

    checkpoint: str
    output: str | None
    format: TorchFormat | None
    dry_run: bool
    overwrite: bool
    model: str | None
    example: list[tuple[int, ...]] | None
    mapping: Path | None
    target: str | None
    both_models: BothModels | None
    optimizer: Path | None


_OF_TORCH_CHECKPOINTS = (
    "file",
    "key",
    "as_stored",
    "trust_remote_code",
    "optimizer_key",
    "optimizer_kind",
    "optimizer_order",
    "assume",
    "save_mapping",
    "dtype",
    "scan",
    "target_apply",
    "target_python",
    "target_channels_last",
    "target_inputs",
    "values",
    "mesh",
    "spec",
    "max_shard_size",
    "process",
    "coordinator",
    "resume",
    "fail_on_nonfinite",
    "checksums",
)
_OF_A_RUN = ("target_apply", "target_python", "target_channels_last")
# What the run says, or has no use for.
_NOT_BESIDE = ("mapping", "assume", "scan", "target_inputs")


def weights_request(given: Mapping[str, Any]) -> ToFlax | ToTorch:
    """Return what a command line asks for.

    Args:
        given: the command's parameters, as click has them.

    Raises:
        click.UsageError: some do not go together.
    """
    return _to_torch(given) if given["to"] == "torch" else _to_flax(given)


def _to_flax(given: Mapping[str, Any]) -> ToFlax:
    from converters.request import ConversionRequest, PlanOptions

    if given["file_format"] == "pt":
        raise click.UsageError("--format pt needs --to torch")
    both, same = None, None
    if given["target"] is not None and given["inputs"]:
        if given["process"] is not None:
            raise click.UsageError(
                "--target with --inputs runs on one host: use --save-mapping there, then --mapping "
                "on all hosts"
            )
        both = _both_models(given)
    elif given["values"]:
        same = _same_values(given)
    else:
        needless = ("unproven", *_OF_A_RUN)
        _require_target(given, *(needless if given["target"] else ("inputs", *needless)))
    size = given["max_shard_size"]
    conversion = ConversionRequest(
        given["checkpoint"],
        given["output"],
        given["file_format"],
        overwrite=given["force"],
        resume=given["resume"],
        shard_bytes=None if size is None else int(size * 1e9),
        mesh=given["mesh"],
        spec=given["spec"],
        fail_on_nonfinite=given["fail_on_nonfinite"],
        digests=given["checksums"],
        optimizer=_optimizer(given),
        ahead_bytes=int(given["read_ahead"] * 1e6),
        plan=PlanOptions(
            model=given["model"],
            example=_shapes(given["example"]),
            assume=given["assume"],
            mapping=given["mapping"],
            key=given["key"],
            as_stored=given["as_stored"],
            trust_remote_code=given["trust_remote_code"],
            to=given["to"],
            dtype=given["dtype"],
            scan=given["scan"],
            target=given["target"],
            target_inputs=given["target_inputs"],
            drop=given["drop"],
        ),
    )
    return ToFlax(
        given["checkpoint"],
        given["file"],
        conversion,
        given["dry_run"],
        given["save_mapping"],
        both,
        same,
        ManyHosts(given["process"], given["coordinator"], given["wait"]),
    )


def _to_torch(given: Mapping[str, Any]) -> ToTorch:
    if given["file_format"] in ("msgpack", "orbax"):
        raise click.UsageError("--to torch writes safetensors or pt")
    for name in _OF_TORCH_CHECKPOINTS:
        if _is_given(given, name):
            raise click.UsageError(
                f"{_option(name)} applies to torch checkpoints and cannot be "
                "combined with --to torch"
            )
    both = None
    if given["target"] is None:
        _require_target(given, "inputs", "unproven", "drop")
    elif not given["inputs"]:
        raise click.UsageError("--to torch --target runs both models: add --inputs")
    elif given["model"] is None:
        raise click.UsageError(
            "--to torch --target needs the Flax model: add --model pkg.module:Model"
        )
    else:
        both = _both_models(given)
    return ToTorch(
        given["checkpoint"],
        given["output"],
        given["file_format"],
        given["dry_run"],
        given["force"],
        given["model"],
        _shapes(given["example"]),
        given["mapping"],
        given["target"],
        both,
        given["optimizer"],
    )


def _both_models(given: Mapping[str, Any]) -> BothModels:
    for name in _NOT_BESIDE:
        if _is_given(given, name):
            raise click.UsageError(
                f"--inputs and {_option(name)} cannot be combined: running both models decides the mapping"
            )
    last = given["target_channels_last"]
    return BothModels(
        given["inputs"],
        given["drop"],
        given["unproven"],
        given["target_apply"],
        given["target_python"] or sys.executable,
        None if last is None else tuple(filter(None, last.split(","))),
    )


def _same_values(given: Mapping[str, Any]) -> SameValues:
    if given["target"] is None:
        raise click.UsageError("--values needs the Flax checkpoint: add --target FILE")
    for name in ("model", "inputs", *_OF_A_RUN, *_NOT_BESIDE):
        if _is_given(given, name):
            raise click.UsageError(
                f"--values and {_option(name)} cannot be combined: the values decide the mapping"
            )
    return SameValues(
        Path(given["target"]),
        given["key"],
        given["as_stored"],
        given["drop"],
        given["unproven"],
    )


def _optimizer(given: Mapping[str, Any]) -> OptimizerRequest | None:
    from converters.request import OptimizerRequest

    file, order = given["optimizer"], given["optimizer_order"]
    if file is None:
        if order is not None:
            raise click.UsageError("--optimizer-order needs --optimizer")
        return None
    return OptimizerRequest(file, given["optimizer_key"], given["optimizer_kind"], order)


def _require_target(given: Mapping[str, Any], *names: str) -> None:
    """Refuse options that only a target that is run has a use for."""
    for name in names:
        if _is_given(given, name):
            raise click.UsageError(f"{_option(name)} needs --target and --inputs")


def _is_given(given: Mapping[str, Any], name: str) -> bool:
    value = given[name]
    return value is not None and value is not False and value != ()


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shapes(texts: Sequence[str]) -> list[tuple[int, ...]] | None:
    try:
        shapes = [tuple(int(side) for side in text.split(",")) for text in texts]
    except ValueError:
        raise click.UsageError("--example takes numbers: --example 1,3,64,48") from None
    return shapes or None
