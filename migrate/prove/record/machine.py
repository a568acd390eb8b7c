"""Facts about a rank's machine, stored beside its record: device, modes of arithmetic, versions."""

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

# Compute capability of the first GPUs with TF32.
_AMPERE = 8


def install() -> None:
    """Write the facts after the first optimizer step: by then the script has chosen its modes."""
    done: list[bool] = []

    def reporting(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if done:
            return
        done.append(True)
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else None
        number = int(os.environ.get("RANK", "0")) if rank is None else rank
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        text = json.dumps(vars(machine(held[0].device if held else torch.device("cpu"))))
        machine_path(Path(os.environ[RECORD_DIRECTORY]), number).write_text(text)

    register_optimizer_step_post_hook(reporting)


def machine(device: torch.device) -> Machine:
    """Return the facts about a device and the torch that drives it."""
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
    """Operations in which torch would multiply float32 in TF32 on a GPU that supports it."""
    # These names answer for both of torch's interfaces, whichever the script has used.
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
