"""The program that torch_xla is about to run, as it would be compiled, in the process that holds its tensors.

What is pending is lowered as a sync would lower it. torch_xla keeps to itself which outputs take the memory
of which inputs; it is read back from its tensors: one that was changed in place remembers the tensor whose
memory it takes ("AliasID"). Without it a program would seem to need room for its weights twice.
"""

from __future__ import annotations

import gc
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

Role = tuple[str, str]  # kind and name: see `Argument`
NOBODY: Mapping[int, Role] = MappingProxyType({})

_ALIAS = re.compile(r"^AliasID: (\d+)$", re.MULTILINE)
_IR = re.compile(r"^IR: (.*)$", re.MULTILINE)
# What these ask for stands in the program; what others ask for (a sampler) decides what it is given.
_COMPUTES = re.compile(r"/(site|dist)-packages/(torch_xla/|torch/(?!utils/data/))")
_EXCHANGES = re.compile(r"xla::(cross_replica|all_|reduce_scatter|collective)")
_NORMS = ("torch/nn/modules/batchnorm.py", "torch/nn/modules/_functions.py")
# What names a value that is there already, and is not computed.
_THERE = ("xla::device_data", "None")


class World:
    """View of the replicas in a process that is one of N.

    The script sees N of them from the beginning: it cuts its data and its batches for so many. Collectives
    see one, as there is one, until the step comes that is only traced and not run; then they see N too.

    Args:
        devices: N.
    """

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._collective = 1
        self._has_begun: Callable[[], bool] = lambda: True

    def install(self, has_begun: Callable[[], bool] = lambda: True) -> None:
        """Answer for torch_xla and torch.distributed.

        Args:
            has_begun: whether the step that is traced has begun: an evaluation before it runs alone.
        """
        import torch.distributed as dist
        from torch_xla import runtime

        self._has_begun = has_begun
        # The ranks that the environment or an address speaks of are not there: nobody is waited for.
        # (The function of that name hides the module.)
        handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
        for scheme in ("env", "tcp"):
            handlers[scheme] = _meet_nobody

        size = dist.get_world_size
        runtime.world_size = self._size
        runtime.global_device_count = self._size
        # All of them on one host, as `as_torchrun` says too: what scripts take for the number of GPUs.
        runtime.local_process_count = lambda: self._devices
        dist.get_world_size = lambda group=None: (
            self._size() if group is None or size(group) == 1 else size(group)
        )

    def trace_for_all(self) -> None:
        """Let the collectives of the next program be those of all replicas; it must not be run."""
        self._collective = self._devices

    def _size(self) -> int:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        asks = frame.f_code.co_filename
        if not _COMPUTES.search(asks):
            return self._devices
        return self._collective if self._has_begun() or _normalizes(frame) else 1


def _normalizes(frame: Any) -> bool:
    """Whether SyncBatchNorm asks, which exchanges before its output has a gradient."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(_NORMS):
            return True
        frame = frame.f_back
    return False


def _meet_nobody(url: str, timeout: Any = None, **_: Any) -> Iterator[tuple[Any, int, int]]:
    """The store, the rank and the size of a process group of one."""
    from torch.distributed import HashStore

    yield HashStore(), 0, 1


def pending_hash() -> str | None:
    """Hash of the pending graph, or None."""
    import torch_xla

    tensors = [tensor for tensor, _ in _computed()]
    graph_hash: bytes = torch_xla._XLAC._get_graph_hash(tensors) if tensors else b""
    return graph_hash.hex() if tensors else None


def pending_program(before: Mapping[int, Role] = NOBODY) -> dict[str, Any] | None:
    """Return the program that a sync would run now, or None.

    Args:
        before: `roles()` when the step began: a weight that is another tensor afterwards is a weight too.

    Returns:
        `hlo`: the HLO module as protobuf; `arguments`, `outputs`: (kind, name) of each; `aliases`: (argument,
        output) that share memory; `hash`: see `pending_hash`.
    """
    import torch_xla

    computed = list(_computed())
    if not computed:
        return None
    tensors = [tensor for tensor, _ in computed]
    core = torch_xla._XLAC
    numbers, _ = core._get_tensors_xla_device_data_node(tensors)
    known = {**before, **roles()}
    places = {number: place for place, number in enumerate(numbers) if number >= 0}
    aliases = []
    for output, (_, alias) in enumerate(computed):
        if alias in places:
            aliases.append((places.pop(alias), output))
    arguments = [
        known.get(number, ("input", "")) if number >= 0 else ("constant", "") for number in numbers
    ]
    outputs = [known.get(number, ("", "")) for _, number in computed]
    return {
        "hlo": bytes(core._get_xla_tensors_hlo_proto(tensors)),
        "arguments": arguments,
        "outputs": outputs,
        "aliases": aliases,
        "hash": core._get_graph_hash(tensors).hex(),
    }


def takes_weights(value: Any) -> bool:
    """Whether what is pending for a tensor is computed from weights: then it is a part of the step."""
    import torch
    import torch_xla

    if not isinstance(value, torch.Tensor) or not is_pending(value):
        return False
    numbers, _ = torch_xla._XLAC._get_tensors_xla_device_data_node([value])
    known = roles()
    return any(known.get(number, ("", ""))[0] == "parameter" for number in numbers)


def runs_alone(value: Any) -> bool:
    """Whether nothing is pending for a tensor, or what is no part of the step and exchanges nothing."""
    import torch_xla

    if not is_pending(value):
        return True
    said = torch_xla._XLAC._get_xla_tensors_text([value])
    return not takes_weights(value) and not _EXCHANGES.search(said)


def exchanges_nothing(value: Any = None) -> bool:
    """Whether what is pending, for a tensor or in all, can run on one replica."""
    import torch_xla

    tensors = [tensor for tensor, _ in _computed()] if value is None else [value]
    if value is not None and not is_pending(value):
        return True
    return not tensors or not _EXCHANGES.search(torch_xla._XLAC._get_xla_tensors_text(tensors))


def is_pending(value: Any) -> bool:
    """Whether a tensor lies on the device, and its values are still to be computed."""
    import torch_xla

    return value.device.type == "xla" and _is_pending(
        torch_xla._XLAC._get_xla_tensor_debug_info(value)
    )


def take_for_run() -> None:
    """Let what is pending count as run: its values are there by name only, and must not be read."""
    import torch_xla
    from torch_xla.core import xla_model

    context = xla_model._get_device_context()
    context.step_closures = context.async_step_closures = []  # they read what was computed
    torch_xla._XLAC._clear_pending_irs(str(torch_xla.device()))


def _computed() -> Iterator[tuple[Any, int]]:
    """The tensors of this process whose values are pending, and the number of what each replaces.

    They come in the order in which they were made, as torch_xla takes them. The garbage collector lists
    them in the order of its generations, which changes from step to step: so would the program's hash.
    """
    import torch_xla

    tensors = {torch_xla._XLAC._xla_get_tensor_id(tensor): tensor for tensor in _tensors()}
    for number, tensor in sorted(tensors.items()):
        said = torch_xla._XLAC._get_xla_tensor_debug_info(tensor)
        if not _is_pending(said):
            continue
        alias = _ALIAS.search(said)
        yield tensor, int(alias[1]) if alias else number


def _is_pending(said: str) -> bool:
    """Whether torch_xla says that the value of a tensor is still to be computed."""
    graph = _IR.search(said)
    return graph is not None and not any(there in graph[1].partition(",")[0] for there in _THERE)


def _tensors() -> Iterator[Any]:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of objects that warn when they are looked at
        for candidate in gc.get_objects():
            try:
                if isinstance(candidate, torch.Tensor) and candidate.device.type == "xla":
                    yield candidate
                    # Of a gradient that nobody asked for yet Python knows nothing.
                    if candidate.is_leaf and candidate.grad is not None:
                        yield candidate.grad
            except (ReferenceError, RuntimeError):
                continue


def roles() -> dict[int, Role]:
    """Map the number of a tensor's memory to the tensor's role in the script."""
    import torch
    import torch_xla

    roles_by_memory: dict[int, Role] = {}

    def note(tensor: Any, kind: str, name: str) -> None:
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "xla":
            said = torch_xla._XLAC._get_xla_tensor_debug_info(tensor)
            alias = _ALIAS.search(said)
            number = int(alias[1]) if alias else torch_xla._XLAC._xla_get_tensor_id(tensor)
            known = roles_by_memory.get(number)
            if known is None or len(known[1]) < len(name):
                roles_by_memory[number] = (kind, name)

    objects = gc.get_objects()
    modules = [module for module in objects if _is(module, torch.nn.Module)]
    names: dict[int, str] = {}
    for module in modules:
        for name, parameter in module.named_parameters():
            note(parameter, "parameter", name)
            note(parameter.grad, "gradient", name)
            names[id(parameter)] = max(names.get(id(parameter), ""), name, key=len)
        for name, parameter in module.named_buffers():
            note(parameter, "statistics", name)
    for optimizer in (optimizer for optimizer in objects if _is(optimizer, torch.optim.Optimizer)):
        for weight, state in optimizer.state.items():
            for name, parameter in state.items() if isinstance(state, dict) else ():
                note(parameter, "optimizer state", f"{names.get(id(weight), '')}.{name}")
    return roles_by_memory


def _is(candidate: Any, cls: type) -> bool:
    try:
        return isinstance(candidate, cls)
    except (ReferenceError, RuntimeError):
        return False
