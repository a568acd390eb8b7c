"""Rendezvous address of simulated replicas, visible to torch_xla's rendezvous alone.

`torch_xla.launch` sets neither MASTER_ADDR nor MASTER_PORT, so a program that reads them fails on a
TPU. The simulation matches this: the two are set only while torch_xla reads them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

from torch.distributed.rendezvous import _rendezvous_handlers

MODULE = "torch_xla._internal.rendezvous"


def meet_at(port: int) -> None:
    """Make `init_process_group(init_method="xla://")` meet at `port` of this machine.

    This also holds if the program named a host of its cluster: simulated replicas are all local.
    """
    from torch_xla._internal import rendezvous

    handler = rendezvous.pjrt_rendezvous_handler
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    @functools.wraps(handler)
    def here(*args: Any, **kwargs: Any) -> Iterator[Any]:
        before = {name: os.environ.get(name) for name in address}
        os.environ.update(address)
        try:
            joined = next(handler(*args, **kwargs))
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        yield joined

    rendezvous.pjrt_rendezvous_handler = here
    # torch keeps previously registered handlers: the backend may already have been imported.
    for scheme, registered in _rendezvous_handlers.items():
        if registered is handler:
            _rendezvous_handlers[scheme] = here
