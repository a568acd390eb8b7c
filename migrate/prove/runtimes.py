"""Packages that drive the TPU, as a run of a rewritten script needs them: one class for each target."""

from __future__ import annotations

import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from converters.installing import require_installed
from migrate.catalogue.target import TPU, XLA, Target, in_words
from migrate.quick_xla import compiling_quickly
from migrate.versions import NEEDS
from shims import activate, simulate_tpu
from shims._simulated_tpu.variables import AUTOLOAD
from shims._started import stand_in
from shims.tpu import tpu_present

# The original on the CPU or its GPUs, or the rewrite for a target.
Side = Literal["original", "xla", "tpu"]
# Launch style of `shims._started.script` for `--torchrun`.
_TORCHRUN = "torchrun"
# Messages of a proof that hold for both targets, and their words for torch_tpu.
_WORDS = (
    (re.compile(r"\bthe XLA device\b"), "the TPU"),
    (re.compile(r"\bseed XLA\b"), "seed the TPU"),
    (re.compile(r"\btorch_xla\.manual_seed\b"), "torch.manual_seed"),
    (re.compile(r"\bxr\.global_ordinal\b"), "dist.get_rank"),
    (re.compile(r"\bas XLA might\b"), "as torch_tpu might"),
    (re.compile(r"^running variances of batch normalization are compared as torch_xla.*"), ""),
    (
        re.compile(r"(running_(?:mean|var) .*)\(left in evaluation mode, or never updated\?\)"),
        r"\1(torch_tpu 0.2.0 does not update the running statistics of a batch normalization in training, so "
        "an evaluation uses the initial ones)",
    ),
)

# What torch_tpu 0.2.0, or torch with it, does not do: the error's words, whose limit it is, and a way around.
_LIMITS = (
    (
        re.compile(r"is not implemented for TPU\b"),
        "torch_tpu does not have this operator",
        "compute it on the CPU, or leave it out",
    ),
    (
        re.compile(
            r"_scaled_dot_product_\w+\.default does not have a sharding strategy registered"
        ),
        "neither torch nor torch_tpu shards the attention kernel that torch_tpu gets",
        "call attention on each rank's part: .to_local() before it, DTensor.from_local after it",
    ),
    (
        re.compile(r"Attempted to call `variable\.set_data\(tensor\)`"),
        "torch moves no parameter to a TPU by `parameter.data = …`, as fully_shard does",
        'move the model before, by .to("tpu"), or make it on the meta device',
    ),
)


class Runtime(ABC):
    """A package that drives the TPU: what it needs, how its ranks start, and its words in messages.

    Attributes:
        target: name of the package.
        side: name of its side of a proof.
        replicas: words for its ranks.
        where: words for the place where the rewrite runs.
        observer: plugin that watches a process of a run.
        runs_graphs: whether each step is a graph, which the ranks have to run alike.
        in_float32: the call that makes a TPU multiply float32 matrices in float32.
    """

    target: ClassVar[Target]
    side: ClassVar[Side]
    replicas: ClassVar[str]
    where: ClassVar[str]
    observer: ClassVar[str]
    runs_graphs: ClassVar[bool] = False
    in_float32: ClassVar[str]

    @abstractmethod
    def require(self, replicas: int) -> None:
        """Check that the rewrite can run here on this number of ranks.

        Raises:
            MissingDependencyError, NotSimulatedError: it cannot; the message says what to install.
        """

    @abstractmethod
    def command(
        self, script: Path, args: Sequence[str], replicas: int, start: str | None
    ) -> list[str]:
        """Return the command that starts the ranks of a script.

        Args:
            script: the script to run.
            args: its arguments.
            replicas: number of ranks.
            start: "torchrun", a launch style of the target, or None for the script's own.
        """

    @abstractmethod
    def environment(
        self, replicas: int, plugins: Sequence[str], observed: Path | None
    ) -> dict[str, str]:
        """Return the environment variables of the ranks.

        Args:
            replicas: number of ranks.
            plugins: plugins that each process loads.
            observed: folder for what the observer writes; None without an observer.
        """

    def limits(self, replicas: int) -> tuple[str, ...]:
        """Return notes on what was simulated, and what that does not show."""
        return ()

    def in_words(self, message: str) -> str:
        """Return a message about a rewrite for torch_xla in the words of the target; "" if it has no use."""
        return message

    def limit(self, reason: str) -> tuple[str, str] | None:
        """Return whose limit an error of a rewrite is, and what to do; None if it is no known one.

        Args:
            reason: the error's last line.
        """
        return None


class XlaRuntime(Runtime):
    """torch_xla, on a TPU or on simulated replicas."""

    target = XLA
    side = "xla"
    replicas = "XLA replicas"
    where = "XLA"
    observer = "migrate.observe.record:install"
    runs_graphs = True
    in_float32 = 'torch_xla.backends.set_mat_mul_precision("highest")'

    def require(self, replicas: int) -> None:
        """Check that torch_xla is installed."""
        require_installed(*NEEDS["run"])

    def command(
        self, script: Path, args: Sequence[str], replicas: int, start: str | None
    ) -> list[str]:
        """Return the command of the script itself, which starts its ranks, or that of torchrun."""
        # -P: imports are beside the script that a stand-in stands for.
        alone = ["-P"] if stand_in.stands_for(script) else []
        module = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={replicas}"]
        return [sys.executable, *(module if start == _TORCHRUN else alone), str(script), *args]

    def environment(
        self, replicas: int, plugins: Sequence[str], observed: Path | None
    ) -> dict[str, str]:
        """Return the variables for the TPU of this machine, or for simulated replicas."""
        if tpu_present():
            return activate.environment(activate.NO_BACKEND, replicas, plugins) | {
                "PJRT_DEVICE": "TPU"
            }
        return activate.environment("simulate", replicas, plugins) | compiling_quickly(os.environ)


class TpuRuntime(Runtime):
    """torch_tpu, on simulated TPUs."""

    target = TPU
    side = "tpu"
    replicas = "torch_tpu replicas"
    where = "torch_tpu"
    observer = "migrate.observe.eager.record:install"
    in_float32 = 'torch.set_float32_matmul_precision("highest")'

    def require(self, replicas: int) -> None:
        """Check the versions, the plugin and the number of ranks; a real TPU is refused.

        This process reads tensors only: torch must not load torch_tpu in it.
        """
        simulate_tpu.require_ranks(replicas)
        simulate_tpu.refuse_tpu()
        os.environ[AUTOLOAD] = "0"

    def command(
        self, script: Path, args: Sequence[str], replicas: int, start: str | None
    ) -> list[str]:
        """Return the command that starts the ranks as the script expects, as on GPUs."""
        how = "environment" if start == _TORCHRUN else start or ""
        # -P: a folder of the user's may be called shims too.
        module = [sys.executable, "-P", "-m", "shims._started"]
        return [*module, str(replicas), how, str(script), *args]

    def environment(
        self, replicas: int, plugins: Sequence[str], observed: Path | None
    ) -> dict[str, str]:
        """Return the variables for simulated TPUs; torch_tpu records its compilations with TORCH_TRACE."""
        variables = activate.environment("simulate-tpu", replicas, plugins)
        # A GPU of this machine is not what the rewrite is for.
        variables["CUDA_VISIBLE_DEVICES"] = ""
        if observed is not None:
            variables["TORCH_TRACE"] = str(observed.resolve() / "trace")
        return variables

    def limits(self, replicas: int) -> tuple[str, ...]:
        """Return the line of `shims` on the simulation."""
        return (f"ran on {simulate_tpu.describe(replicas)}",)

    def in_words(self, message: str) -> str:
        """Return the message in the words of torch_tpu, with what is known of it."""
        for pattern, words in _WORDS:
            message = pattern.sub(words, message)
        return in_words(message, TPU)

    def limit(self, reason: str) -> tuple[str, str] | None:
        """Return the first limit of torch_tpu that the error names."""
        limits = ((whose, around) for words, whose, around in _LIMITS if words.search(reason))
        return next(limits, None)


RUNTIMES: dict[Target, Runtime] = {XLA: XlaRuntime(), TPU: TpuRuntime()}
SIDES: dict[Side, Runtime] = {runtime.side: runtime for runtime in RUNTIMES.values()}
