"""The command line of `migrate weights` as one of two requests."""

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
    """Settings of the runs of both models that match their weights (--inputs).

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
        port: the folder of `migrate port` that the pytree is for; None: another target, or none.
    """

    checkpoint: str
    file: str | None
    conversion: ConversionRequest
    dry_run: bool
    save_mapping: Path | None
    both_models: BothModels | None
    same_values: SameValues | None
    hosts: ManyHosts
    port: Path | None = None


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


def weights_request(arguments: Mapping[str, Any]) -> ToFlax | ToTorch:
    """Return what a command line asks for.

    Args:
        arguments: the command's parameters, as click has them.

    Raises:
        click.UsageError: some do not go together.
    """
    return _to_torch(arguments) if arguments["to"] == "torch" else _to_flax(arguments)


def _to_flax(arguments: Mapping[str, Any]) -> ToFlax:
    from converters.request import ConversionRequest, PlanOptions

    if arguments["file_format"] == "pt":
        raise click.UsageError("--format pt needs --to torch")
    both, same, port = None, None, None
    model, target = arguments["model"], arguments["target"]
    if not arguments["values"]:
        model, target, port = _named_models(model, target)
    if port is not None and not arguments["inputs"]:
        for name in (*_NOT_BESIDE, "drop", "unproven", *_OF_A_RUN):
            if _is_given(arguments, name):
                raise click.UsageError(
                    f"{_option(name)} and a port as --target cannot be combined: its mapping.yaml decides"
                )
    elif arguments["target"] is not None and arguments["inputs"]:
        if arguments["process"] is not None:
            raise click.UsageError(
                "--target with --inputs runs on one host: use --save-mapping there, then --mapping "
                "on all hosts"
            )
        both = _both_models(arguments)
    elif arguments["values"]:
        same = _same_values(arguments)
    else:
        needless = ("unproven", *_OF_A_RUN)
        _require_target(arguments, *(needless if arguments["target"] else ("inputs", *needless)))
    size = arguments["max_shard_size"]
    conversion = ConversionRequest(
        arguments["checkpoint"],
        arguments["output"],
        arguments["file_format"],
        overwrite=arguments["force"],
        resume=arguments["resume"],
        shard_bytes=None if size is None else int(size * 1e9),
        mesh=arguments["mesh"],
        spec=arguments["spec"],
        fail_on_nonfinite=arguments["fail_on_nonfinite"],
        digests=arguments["checksums"],
        optimizer=_optimizer(arguments),
        ahead_bytes=int(arguments["read_ahead"] * 1e6),
        plan=PlanOptions(
            model=model,
            example=_shapes(arguments["example"]),
            assume=arguments["assume"],
            mapping=arguments["mapping"],
            key=arguments["key"],
            as_stored=arguments["as_stored"],
            trust_remote_code=arguments["trust_remote_code"],
            to=arguments["to"],
            dtype=arguments["dtype"],
            scan=arguments["scan"],
            target=target,
            target_inputs=arguments["target_inputs"],
            drop=arguments["drop"],
        ),
    )
    return ToFlax(
        arguments["checkpoint"],
        arguments["file"],
        conversion,
        arguments["dry_run"],
        arguments["save_mapping"],
        both,
        same,
        ManyHosts(arguments["process"], arguments["coordinator"], arguments["wait"]),
        None if arguments["inputs"] else port,
    )


def _named_models(
    model: str | None, target: str | None
) -> tuple[str | None, str | None, Path | None]:
    """Return both models without their kinds (`torch:`, `linen:`), and the folder of a port as target.

    Raises:
        TargetError: a kind is not the model's, or the folder of a port does not exist.
    """
    from migrate.parity.sides.target import is_model_of_port, parse_target, plain_spec

    if model is not None:
        model = plain_spec(model, ("torch",), "torch module")
    if target is None:
        return model, None, None
    file, _, name = target.rpartition(":")
    if target.startswith("port:") or Path(target).is_dir() or is_model_of_port(file, name):
        named = parse_target(target)
        if named.kind == "port":
            return model, target, Path(named.spec)
    return model, plain_spec(target, ("linen", "nnx", "jax"), "Flax model"), None


def _to_torch(arguments: Mapping[str, Any]) -> ToTorch:
    if arguments["file_format"] in ("msgpack", "orbax"):
        raise click.UsageError("--to torch writes safetensors or pt")
    for name in _OF_TORCH_CHECKPOINTS:
        if _is_given(arguments, name):
            raise click.UsageError(
                f"{_option(name)} applies to torch checkpoints and cannot be "
                "combined with --to torch"
            )
    from migrate.parity.sides.target import plain_spec

    both, model = None, arguments["model"]
    if arguments["target"] is None:
        model = None if model is None else plain_spec(model, ("torch",), "torch module")
        _require_target(arguments, "inputs", "unproven", "drop")
    elif not arguments["inputs"]:
        raise click.UsageError("--to torch --target runs both models: add --inputs")
    elif arguments["model"] is None:
        raise click.UsageError(
            "--to torch --target needs the Flax model: add --model pkg.module:Model"
        )
    else:
        both = _both_models(arguments)
    return ToTorch(
        arguments["checkpoint"],
        arguments["output"],
        arguments["file_format"],
        arguments["dry_run"],
        arguments["force"],
        model,
        _shapes(arguments["example"]),
        arguments["mapping"],
        arguments["target"],
        both,
        arguments["optimizer"],
    )


def _both_models(arguments: Mapping[str, Any]) -> BothModels:
    for name in _NOT_BESIDE:
        if _is_given(arguments, name):
            raise click.UsageError(
                f"--inputs and {_option(name)} cannot be combined: running both models decides the mapping"
            )
    last = arguments["target_channels_last"]
    return BothModels(
        arguments["inputs"],
        arguments["drop"],
        arguments["unproven"],
        arguments["target_apply"],
        arguments["target_python"] or sys.executable,
        None if last is None else tuple(filter(None, last.split(","))),
    )


def _same_values(arguments: Mapping[str, Any]) -> SameValues:
    if arguments["target"] is None:
        raise click.UsageError("--values needs the Flax checkpoint: add --target FILE")
    for name in ("model", "inputs", *_OF_A_RUN, *_NOT_BESIDE):
        if _is_given(arguments, name):
            raise click.UsageError(
                f"--values and {_option(name)} cannot be combined: the values decide the mapping"
            )
    return SameValues(
        Path(arguments["target"]),
        arguments["key"],
        arguments["as_stored"],
        arguments["drop"],
        arguments["unproven"],
    )


def _optimizer(arguments: Mapping[str, Any]) -> OptimizerRequest | None:
    from converters.request import OptimizerRequest

    file, order = arguments["optimizer"], arguments["optimizer_order"]
    if file is None:
        if order is not None:
            raise click.UsageError("--optimizer-order needs --optimizer")
        return None
    return OptimizerRequest(file, arguments["optimizer_key"], arguments["optimizer_kind"], order)


def _require_target(arguments: Mapping[str, Any], *names: str) -> None:
    """Refuse options that only a target that is run has a use for."""
    for name in names:
        if _is_given(arguments, name):
            raise click.UsageError(f"{_option(name)} needs --target and --inputs")


def _is_given(arguments: Mapping[str, Any], name: str) -> bool:
    value = arguments[name]
    return value is not None and value is not False and value != ()


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shapes(texts: Sequence[str]) -> list[tuple[int, ...]] | None:
    try:
        shapes = [tuple(int(side) for side in text.split(",")) for text in texts]
    except ValueError:
        raise click.UsageError("--example takes numbers: --example 1,3,64,48") from None
    return shapes or None
