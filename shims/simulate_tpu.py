"""Simulation of a TPU for torch_tpu, PyTorch's native "tpu" device, without a TPU.

Each process is a replica. torch_tpu itself runs, over XLA's compiler for the CPU: its operators, its
autograd, its optimizers. Its collectives, the backend "tpu_dist", run over gloo.

    variables = shims.activate.environment("simulate-tpu", replicas=2)
    subprocess.run(["torchrun", "--nproc_per_node", "2", "train.py"], env=os.environ | variables)

`NOT_SHOWN` names what a simulated run does not show. docs/shims/torch-tpu.md is the page about it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import warnings
from pathlib import Path

from shims import activate
from shims._simulated_tpu import plugin, versions
from shims._simulated_tpu.variables import AUTOLOAD, CACHE, LIBRARY, variables
from shims.errors import NotSimulatedError
from shims.tpu import chips

NOT_SHOWN = (
    "a TPU's products and sums of bfloat16, memory and speed, Mosaic kernels, torch_tpu's own "
    "collectives and cumulative sums"
)


def describe(ranks: int) -> str:
    """Return what was simulated and what that does not show, in one line.

    Args:
        ranks: the number of replicas.
    """
    replicas = f"{ranks} simulated replica{'s' * (ranks != 1)}"
    library = f"torch_tpu {versions.installed('torch_tpu')} on XLA:CPU"
    plugin_name = f"{versions.PLUGIN} {versions.installed(versions.PLUGIN)}"
    return f"{replicas}: {library} ({plugin_name}), collectives over gloo; not shown: {NOT_SHOWN}"


def is_installed() -> bool:
    """Whether this process simulates a TPU."""
    return _install.cache_info().currsize > 0


def require_ranks(count: int) -> None:
    """Check that this number of ranks can be simulated here.

    Raises:
        NotSimulatedError: a package is missing or has another version, the plugin does not load, or
            no TPU host has as many chips.
    """
    versions.require()
    versions.require_host(count)
    plugin.prepare(versions.plugin_file())


def refuse_tpu() -> None:
    """Refuse a machine with a TPU, for commands that were tried on simulated TPUs only.

    Raises:
        NotSimulatedError: this machine has a TPU, and PJRT_DEVICE does not name another device.
    """
    if chips():
        raise NotSimulatedError(
            "this command runs torch_tpu on simulated TPUs only, and this machine has a TPU",
            "PJRT_DEVICE=CPU simulates one here; or start the script yourself, as on a TPU",
        )


def install(replicas: int | None = None) -> None:
    """Register the device "tpu" in this process, on XLA:CPU. A second call changes nothing.

    Args:
        replicas: the number of chips of the simulated host; None to read it from the environment.

    Raises:
        NotSimulatedError: a package has another version, torch_tpu is already loaded, or no host
            has this number of chips.
    """
    if not is_installed():
        _install(replicas or activate.replicas())


@functools.cache
def _install(replicas: int) -> None:
    require_ranks(replicas)
    needed = variables()
    if "torch_tpu" in sys.modules and os.environ.get(LIBRARY) != needed[LIBRARY]:
        raise NotSimulatedError(
            "torch has loaded torch_tpu for a TPU, and there is none here",
            f"start the program with {AUTOLOAD}=0, and shims simulates a TPU",
        )
    os.environ.update(needed)
    Path(needed[CACHE]).mkdir(parents=True, exist_ok=True)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), warnings.catch_warnings():
            # What torch_tpu tells of its start, and of an allocator that is faster on a TPU.
            warnings.simplefilter("ignore")
            _load(replicas)
    except NotSimulatedError:
        raise
    except Exception as error:
        sys.stderr.write(printed.getvalue())
        reason = " ".join(str(error).split())
        raise NotSimulatedError(
            f"torch_tpu does not start on XLA:CPU: {type(error).__name__}: {reason}",
            versions.INSTALL,
        ) from error


def _load(replicas: int) -> None:
    import torch
    import torch_tpu._loader

    from shims._simulated_tpu import collectives, host_operators, world
    from shims.patches.ranks import rendezvous

    world.answer(replicas)
    torch_tpu._loader.load()
    collectives.install()
    rendezvous.install(replicas)
    host_operators.install()
    # torch_tpu's flash attention is a Mosaic kernel, which only a TPU runs.
    torch.backends.cuda.enable_flash_sdp(False)
    world.hide_from_compiler()
