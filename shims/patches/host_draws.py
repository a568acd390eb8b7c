"""Draws with a generator of the program, which is on the host, for tensors of a device."""

from __future__ import annotations

from typing import Any

import torch


def drawn(func: Any, args: Any, kwargs: dict[str, Any], device: torch.device) -> Any:
    """Draw on the host with the program's generator, and move the result to the device.

    Args:
        func: the torch function that draws.
        args: its arguments.
        kwargs: its keywords, `generator` among them.
        device: the device of the program's tensors.
    """

    def on_host(value: Any) -> Any:
        return value.cpu() if isinstance(value, torch.Tensor) else value

    arguments = {name: on_host(value) for name, value in kwargs.items()}
    if "device" in arguments:
        arguments["device"] = torch.device("cpu")
    host = [on_host(value) for value in args]
    result = func(*host, **arguments)
    if host and result is host[0]:  # in place
        return args[0].copy_(result)
    into = kwargs.get("out")
    if into is not None:
        return into.copy_(result)
    return result.to(device) if isinstance(result, torch.Tensor) else result
