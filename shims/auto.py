"""`import shims.auto` at the top of a script: its CUDA code runs on the backend that is here.

TPU (torch_xla) first, then CUDA, where nothing is patched, then the CPU. `MIGRATE_BACKEND=cpu`,
`cuda` or `xla` forces one. The processes that the script starts do the same. It has as many devices
as its launcher started ranks (`LOCAL_WORLD_SIZE`), otherwise as many as there are, at least one.
"""

from __future__ import annotations

import os

from shims import activate, choice


def _switch_on() -> None:
    if activate.BACKEND in os.environ:
        # Started by `python -m shims`, or by a process that has imported this.
        return
    backend = choice.choose_for_cuda_code()
    if backend == "cuda":
        return
    here = os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", ""))
    count = int(here) if here.isdecimal() else choice.devices(backend)
    os.environ.update(activate.environment(choice.ACTIVATED[backend], count))
    activate.switch_on()


_switch_on()
