"""Run CUDA code on the backend of this machine: put `import shims.auto` at the top of the script.

The order is TPU (torch_xla), then CUDA, where nothing is patched, then the CPU.
`MIGRATE_BACKEND=cpu`, `cuda` or `xla` forces a backend. The processes that the script starts use
the same backend. The number of devices is the number of ranks that the launcher started
(`LOCAL_WORLD_SIZE`), otherwise the number of devices of the machine, at least one.
"""

from __future__ import annotations

import os

from shims import activate, choice


def _switch_on() -> None:
    if activate.BACKEND in os.environ:
        # Started by `python -m shims`, or by a process that has imported this module.
        return
    backend = choice.choose_for_cuda_code()
    if backend == "cuda":
        return
    here = os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", ""))
    count = int(here) if here.isdecimal() else choice.devices(backend)
    os.environ.update(activate.environment(choice.ACTIVATED[backend], count))
    activate.switch_on()


_switch_on()
