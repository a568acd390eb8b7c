"""A torch module as one program of torch_tpu for a step; in a process of its own, on a simulated TPU.

torch_tpu 0.2.0 runs each operator by itself, unless `torch.compile` joins them. Its mode for graphs records
the whole step instead: forward pass, backward pass and optimizer. The names used here are private, so the
version is checked by `shims` before the module is loaded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from migrate.compiler.program import CompilerProgram
from migrate.counts import many
from migrate.fit.errors import FitError
from migrate.fit.lowered.live import LiveTensors
from migrate.fit.lowered.shapes import shapes_of
from migrate.fit.lowered.step import LoweredStep, ProgramArgument, StepProgram, Wanted
from migrate.fit.lowered.torch_step import (
    WARM_UP,
    ModuleTraining,
    forward_step,
    made_input,
    training_step,
)
from migrate.parity.sides.torch.training import loss_of

_DEVICE = "tpu"
_BUCKET_BYTES = 25 * 2**20  # bucket_cap_mb of DistributedDataParallel
_TYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64"}
_Held = list[tuple[ProgramArgument, torch.Tensor]]


def lower_tpu(module: Any, wanted: Wanted) -> LoweredStep:
    """Run a module on a simulated TPU until its steps are equal, and record the next step as one program.

    Raises:
        FitError: it is asked for what only other frameworks have.
        InputsError, ParityError: the module does not take the inputs, or raises.
    """
    if wanted.mesh or wanted.shard or wanted.remat:
        raise FitError(
            f"{wanted.target}: a program of torch_tpu is that of one chip, as the model is written",
            "leave --mesh, --spec, --try shard and --try remat out",
        )
    if wanted.loss != "auto":
        loss_of(wanted.loss)  # before anything runs, should there be none
    dtype = getattr(torch, wanted.dtype) if wanted.dtype else None
    module = (module.to(dtype) if dtype else module).to(_DEVICE)
    module.train(bool(wanted.optimizer))
    inputs = {
        name: made_input(shape, d, dtype).to(_DEVICE)
        for name, (shape, d) in shapes_of(wanted).items()
    }
    training = (
        training_step(module, inputs, wanted, lambda optimizer: optimizer.step())
        if wanted.optimizer
        else None
    )
    run = training.run if training else forward_step(module, inputs, wanted)
    # The thread of this function runs backward passes too, so that its modes hold there.
    with torch.autograd.set_multithreading_enabled(False):
        for _ in range(WARM_UP if training else 0):
            run()
        held = [*_state(module, training), *_given(inputs, training)]
        live = LiveTensors((tensor for _, tensor in held), _DEVICE)
        with live:
            run()
        text, outputs = _recorded(run, held, training)
    program = CompilerProgram(
        wanted.target,
        "stablehlo",
        text.encode(),
        aliases=tuple((number, number) for number in range(len(outputs))),
    )
    parts = [StepProgram(program, tuple(argument for argument, _ in held), outputs=outputs)]
    if training and wanted.devices > 1:
        parts.append(_exchange(module, wanted))
    notes = (
        "the step as one program, which is what torch.compile could make of all of it at best",
        f"torch_tpu runs {many(live.operators, 'operator')} of it one by one by default: their tensors take "
        f"{live.peak / 2**20:,.1f} MiB at the peak, without padding",
        *(_of_chips(parts, wanted.devices) if wanted.devices > 1 else ()),
    )
    return LoweredStep(
        tuple(parts), bool(training), notes, package="torch_tpu", eager_bytes=live.peak
    )


def _exchange(module: Any, wanted: Wanted) -> StepProgram:
    """Return the program in which DistributedDataParallel averages the gradients, bucket by bucket."""
    buckets = _buckets([p for p in module.parameters() if p.requires_grad])
    types = [f"tensor<{size}x{_TYPES[dtype]}>" for dtype, size in buckets]
    group = ", ".join(map(str, range(wanted.devices)))
    lines = []
    for number, ((dtype, _), type_) in enumerate(zip(buckets, types, strict=True)):
        item = f"tensor<{_TYPES[dtype]}>"
        lines.append(
            f"""    %sum{number} = "stablehlo.all_reduce"(%arg{number}) <{{
      replica_groups = dense<[[{group}]]> : tensor<1x{wanted.devices}xi64>
    }}> ({{
    ^bb0(%a: {item}, %b: {item}):
      %c = stablehlo.add %a, %b : {item}
      stablehlo.return %c : {item}
    }}) : ({type_}) -> {type_}
    %n{number} = stablehlo.constant dense<{wanted.devices}.0> : {type_}
    %mean{number} = stablehlo.divide %sum{number}, %n{number} : {type_}"""
        )
    arguments = ", ".join(f"%arg{number}: {type_}" for number, type_ in enumerate(types))
    means = ", ".join(f"%mean{number}" for number in range(len(types)))
    text = (
        f"module @exchange {{\n  func.func public @main({arguments}) -> ({', '.join(types)}) {{\n"
        + "\n".join(lines)
        + f"\n    return {means} : {', '.join(types)}\n  }}\n}}\n"
    )
    named = tuple(ProgramArgument("gradient", f"bucket {n}") for n in range(len(buckets)))
    aliases = tuple((number, number) for number in range(len(buckets)))
    program = CompilerProgram(wanted.target, "stablehlo", text.encode(), aliases=aliases)
    return StepProgram(program, named, outputs=named)


def _buckets(parameters: Sequence[torch.Tensor]) -> list[tuple[torch.dtype, int]]:
    """Return dtype and number of elements of each bucket of DistributedDataParallel's defaults."""
    # As DistributedDataParallel: the last gradients come first, and the first bucket is small.
    backwards = parameters[::-1]
    indices, _ = dist._compute_bucket_assignment_by_size(
        list(backwards), [dist._DEFAULT_FIRST_BUCKET_BYTES, _BUCKET_BYTES]
    )
    members = ([backwards[index] for index in bucket] for bucket in indices)
    return [(bucket[0].dtype, sum(p.numel() for p in bucket)) for bucket in members]


def _of_chips(parts: Sequence[StepProgram], devices: int) -> Iterator[str]:
    """Yield the note on the programs of several chips."""
    buckets = len(parts[1].arguments) if len(parts) > 1 else 0
    averaged = (
        f"; DistributedDataParallel averages the gradients in {many(buckets, 'bucket')}, a copy of them"
        if buckets
        else ""
    )
    yield f"each of the {devices} chips runs this program in a process of its own{averaged}"


def _state(module: Any, training: ModuleTraining | None) -> Iterator[tuple[ProgramArgument, Any]]:
    """Yield what a step of training writes, on the device."""
    names = {}
    for name, parameter in module.named_parameters():
        names[parameter] = name
        yield ProgramArgument("parameter", name), parameter
    for name, buffer in module.named_buffers():
        yield ProgramArgument("statistics", name), buffer
    for parameter, state in training.optimizer.state.items() if training else ():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.device.type == _DEVICE:
                yield ProgramArgument("optimizer state", f"{names[parameter]}.{key}"), value


def _given(
    inputs: dict[str, Any], training: ModuleTraining | None
) -> Iterator[tuple[ProgramArgument, Any]]:
    for name, tensor in inputs.items():
        yield ProgramArgument("input", name), tensor
    for tensor in training.targets if training else ():
        yield ProgramArgument("input", "target"), tensor


def _recorded(
    run: Callable[[], Any], held: _Held, training: ModuleTraining | None
) -> tuple[str, tuple[ProgramArgument, ...]]:
    """Return the StableHLO of a step, and the outputs that take the memory of the first arguments."""
    from torch_tpu._internal import execution_mode
    from torch_tpu._internal.compile import tpu_torch_compile

    graph = tpu_torch_compile
    generator: Any = torch.tpu.default_generators[0]
    random = graph.make_export_mode_device_generator(generator)
    torch.accelerator.synchronize()
    graph.set_export_mode_default_device_generator(random)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch_tpu calls the mode experimental
            mode = execution_mode.set_eager_mode(
                execution_mode.EagerMode._INTERNAL_COMPILE_FX_GRAPH
            )
        with mode:
            arguments = [graph.placeholder_like(tensor.detach()) for _, tensor in held]
            if training:
                training.optimizer.zero_grad()
            for (_, tensor), argument in zip(held, arguments, strict=True):
                # A copy: operators in place would write into the argument.
                tensor.data = argument.clone()
            draws = graph.get_device_state_tensor(random)
            results = [leaf for leaf in _leaves(run()) if leaf.device.type == _DEVICE]
            drawn = graph.get_device_state_tensor(random)
            written = [pair for pair in held if pair[0].kind != "input"] if training else []
            outputs = [*(tensor.detach() for _, tensor in written), *results]
            if draws.data_ptr() != drawn.data_ptr():
                arguments, outputs = [*arguments, draws], [*outputs, drawn]
            module = graph.build_mlir(outputs, arguments)
            return graph.serialize_mlir_text(module, enable_debug_info=True), tuple(
                argument for argument, _ in written
            )
    finally:
        graph.clear_export_mode_default_device_generators()


def _leaves(value: Any) -> Sequence[torch.Tensor]:
    pairs = value if isinstance(value, list) else [("", value)]
    return [tensor.detach() for _, tensor in pairs]
