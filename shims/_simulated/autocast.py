"""`torch_xla.amp.autocast` on the CPU as on a TPU."""

from __future__ import annotations

import types

from shims import activate


def install() -> None:
    """Let `torch_xla.amp.autocast` see a TPU, as soon as it is imported.

    It asks for the hardware. On a CPU torch_xla 2.9 warns, leaves the context half made, and entering it
    raises AttributeError.
    """
    activate.after_import("torch_xla.amp.autocast_mode", _see_a_tpu)


def _see_a_tpu() -> None:
    from torch_xla.amp import autocast_mode

    autocast_mode.xm = types.SimpleNamespace(xla_device_hw=lambda device: "TPU")
