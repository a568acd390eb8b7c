"""What a rank ran on, beside its record: the device, its modes of arithmetic, versions."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from migrate.prove.recording.machine import Machine, machine_path
from migrate.prove.recording.records import RECORD_DIRECTORY

# Of compute capability: the first with TF32.
_AMPERE = 8


def install() -> None:
    """Write it after the first optimizer step: by then the script has chosen its modes."""
    done: list[bool] = []

    def told(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if done:
            return
        done.append(True)
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else None
        number = int(os.environ.get("RANK", "0")) if rank is None else rank
        held = [one for group in optimizer.param_groups for one in group["params"]]
        text = json.dumps(vars(machine(held[0].device if held else torch.device("cpu"))))
        machine_path(Path(os.environ[RECORD_DIRECTORY]), number).write_text(text)

    register_optimizer_step_post_hook(told)


def machine(device: torch.device) -> Machine:
    """What there is to say of a device and of the torch that drives it."""
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    if device.type != "cuda":
        return Machine("cpu", platform.processor() or platform.machine(), (), versions)
    capability = torch.cuda.get_device_capability(device)
    versions["cuda"] = str(torch.version.cuda)
    versions["cudnn"] = str(torch.backends.cudnn.version())
    modes = [f"TF32 in {what}" for what in tf32() if capability[0] >= _AMPERE]
    if torch.backends.cudnn.benchmark:
        modes.append("cudnn.benchmark")
    if torch.are_deterministic_algorithms_enabled():
        modes.append("deterministic algorithms")
    return Machine("cuda", torch.cuda.get_device_name(device), tuple(modes), versions)


def tf32() -> tuple[str, ...]:
    """Where torch would multiply float32 in TF32 on a GPU that has it."""
    # By the names that answer whichever of torch's two interfaces the script has used.
    backends: Any = torch.backends
    whole = str(getattr(backends, "fp32_precision", "none"))
    asked = {
        "matrix products": backends.cuda.matmul,
        "convolutions": backends.cudnn.conv,
        "recurrent layers": backends.cudnn.rnn,
    }
    chosen = {name: str(place.fp32_precision) for name, place in asked.items()}
    return tuple(
        name for name, mode in chosen.items() if (whole if mode == "none" else mode) == "tf32"
    )
