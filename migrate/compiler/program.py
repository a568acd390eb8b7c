"""A program for the compiler, and the programs of forward passes, which `parity` compiles.

The programs of training steps, which `fit` compiles, are made in `fit/lowered/`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Format = Literal["stablehlo", "hlo"]


@dataclass(frozen=True)
class CompilerProgram:
    """A program as a framework hands it to a compiler.

    Attributes:
        name: name for messages.
        format: "stablehlo" is MLIR as text or bytecode, "hlo" an HLO module as protobuf.
        data: content of the program.
        partitioned: whether one program is spread over all devices (`jax.jit` with shardings); else each
            device runs a replica of it.
        aliases: (argument, output) that are donated beside those that the program itself names.
    """

    name: str
    format: Format
    data: bytes
    partitioned: bool = False
    aliases: tuple[tuple[int, int], ...] = ()


def program_of_jax(function: Any, *args: Any, name: str = "") -> CompilerProgram:
    """Return a JAX function lowered for a TPU, with its source lines; arguments may be shapes only."""
    import jax

    # A function that is jitted already keeps its static arguments.
    jitted = function if hasattr(function, "trace") else jax.jit(function)
    lowered = jitted.trace(*args).lower(lowering_platforms=("tpu",))
    text = lowered.as_text(debug_info=True)
    return CompilerProgram(
        name or getattr(function, "__name__", "function"), "stablehlo", text.encode()
    )


@contextlib.contextmanager
def on_tpu(devices: int) -> Iterator[None]:
    """Let JAX say that it runs on a TPU of so many devices, as it will where the program runs.

    Models choose kernels by `jax.default_backend()`.
    """
    import jax

    before = jax.default_backend, jax.device_count
    jax.default_backend, jax.device_count = lambda: "tpu", lambda backend=None: devices
    try:
        yield
    finally:
        jax.default_backend, jax.device_count = before


def program_of_torch(module: Any, inputs: Sequence[Any] | Mapping[str, Any]) -> CompilerProgram:
    """Return the forward pass of a torch module, as torch_xla lowers it, with the source lines of the calls.

    Has to run in a process that has torch_xla (`PJRT_DEVICE=CPU` will do); `XLA_HLO_DEBUG=1` is not needed.
    The module is copied, and left where it is.

    Args:
        inputs: the arguments of its forward pass, in order or by name.
    """
    import copy

    import torch
    import torch_xla
    from torch.utils._pytree import tree_leaves, tree_map

    device = torch_xla.device()
    torch_xla._XLAC._set_ir_debug(True)
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    placed: Any = tree_map(
        lambda value: value.to(device) if isinstance(value, torch.Tensor) else value,
        ([] if named else list(inputs), named),
    )
    model = copy.deepcopy(module).to(device)
    torch_xla.sync()  # what made the weights and the inputs is no part of the program
    with torch.no_grad():
        outputs = tree_leaves(model(*placed[0], **placed[1]))
    tensors = [value for value in outputs if isinstance(value, torch.Tensor)]
    proto = torch_xla._XLAC._get_xla_tensors_hlo_proto(tensors)
    return CompilerProgram(type(module).__name__, "hlo", bytes(proto))
