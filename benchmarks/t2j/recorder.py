"""Runs a training script of the benchmark under hooks and records what its training computes.

    python benchmarks/t2j/recorder.py SCRIPT --output FILE [--full-precision]

The script runs unchanged, as `__main__`, with its default arguments. Recorded are, for each optimizer step,
the micro-batches, losses, outputs and gradients of its backward calls, the learning rate, and the weights
before and after it. Dropout is off. With --full-precision autocast is off, too.

What is the batch of a script, and which variables hold its modules, is said in tasks.toml.
"""

from __future__ import annotations

import argparse
import dataclasses
import pickle
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as hooks
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.t2j.tasks import read_task

Arrays = dict[str, np.ndarray]


def to_numpy(value: Any) -> Any:
    """Copy tensors to NumPy; dataclasses and named tuples become dictionaries."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy().copy()
    if isinstance(value, Mapping):
        return {key: to_numpy(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_numpy(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return {key: to_numpy(item) for key, item in value._asdict().items()}
    if isinstance(value, (list, tuple)):
        return [to_numpy(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (bool, int, float, np.generic)) or value is None:
        return value
    raise TypeError(f"a batch cannot hold a value of type {type(value).__name__}")


def fingerprint(value: Any) -> bytes:
    """Bytes that are the same for the same values; the order of a list's items does not matter."""
    if isinstance(value, Mapping):
        return b"{" + b",".join(fingerprint(item) for item in value.values()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(sorted(map(fingerprint, value))) + b"]"
    return np.asarray(value).tobytes()


def follow(value: Any, parts: list[str]) -> Any:
    """Follow a path of attributes, keys and indices; `*` is each item of a list."""
    for position, part in enumerate(parts):
        if part == "*":
            return [follow(item, parts[position + 1 :]) for item in value]
        if isinstance(value, (Mapping, torch.nn.ModuleDict)):
            value = value[part]
        elif part.isdecimal():
            value = value[int(part)]
        else:
            value = getattr(value, part)
    return value


class Recorder:
    """Hooks that follow one run of a script."""

    def __init__(self, script: Path, task: dict[str, Any]) -> None:
        self.file, self.task = str(script), task
        self.modules: dict[str, torch.nn.Module] = {}
        self.tracked: set[int] = set()
        self.depth = 0
        self.batch: dict[str, Any] | None = None
        self.outputs: list[np.ndarray] = []
        self.micro: list[dict[str, Any]] = []
        self.rounds: list[dict[str, Any]] = []
        self.rollouts: list[dict[str, Any]] = []
        self.sites: dict[int, int] = {}
        self.rate = 0.0

    def frames(self) -> list[FrameType]:
        """The script's own frames, innermost first."""
        frame, found = sys._getframe(1), []
        while frame is not None:
            if frame.f_code.co_filename == self.file:
                found.append(frame)
            frame = frame.f_back
        return found

    def look_up(self, name: str, frames: list[FrameType]) -> Any:
        """Return the value of `path` or `function:path` in the innermost frame that has it."""
        function, _, path = name.rpartition(":")
        first, *rest = path.split(".")
        for frame in frames:
            if function and frame.f_code.co_name != function:
                continue
            if first in frame.f_locals:
                return follow(frame.f_locals[first], rest)
        if frames and first in frames[0].f_globals and not function:
            return follow(frames[0].f_globals[first], rest)
        raise NameError(name)

    def find_modules(self, frames: list[FrameType]) -> None:
        """Find the modules of the task once all of them exist."""
        try:
            found = {key: self.look_up(path, frames) for key, path in self.task["modules"].items()}
        except (NameError, AttributeError, KeyError):
            return
        self.modules = {key: getattr(module, "module", module) for key, module in found.items()}
        self.tracked = {
            id(part)
            for module in self.modules.values()
            if any(p.requires_grad for p in module.parameters())
            for part in module.modules()
        }

    def weights(self) -> dict[str, Arrays]:
        """The state of every module by torch's names, tied and buffered entries included."""
        return {key: to_numpy(module.state_dict()) for key, module in self.modules.items()}

    def before_forward(self, module: torch.nn.Module, _: Any) -> None:
        if not self.modules:
            if not torch.is_grad_enabled():
                return
            self.find_modules(self.frames())
        if id(module) not in self.tracked:
            return
        self.depth += 1
        if self.depth == 1 and torch.is_grad_enabled() and self.batch is None:
            frames = self.frames()
            self.batch = {name: to_numpy(self.look_up(name, frames)) for name in self.task["batch"]}
            if "scores" in self.task:
                self.record_rollout(frames)

    def record_rollout(self, frames: list[FrameType]) -> None:
        """Record the rollout that the coming update learns from, if it is another one."""
        sampled, experience = (
            {name: to_numpy(self.look_up(name, frames)) for name in self.task[kind]}
            for kind in ("sampled", "experience")
        )
        mark = fingerprint(sampled)
        if self.rollouts and self.rollouts[-1]["mark"] == mark:
            return
        scores = np.asarray(to_numpy(self.look_up(self.task["scores"], frames)), np.float32)
        weights = self.weights()
        self.rollouts.append(
            {
                "mark": mark,
                "round": len(self.rounds),
                "sampled": sampled,
                "experience": experience,
                "scores": scores,
                "weights": weights,
            }
        )

    def after_forward(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        if id(module) not in self.tracked:
            return
        self.depth -= 1
        if self.depth == 0 and torch.is_grad_enabled():
            for name in ("logits", "last_hidden_state"):
                if hasattr(output, name):
                    output = getattr(output, name)
            several = output if isinstance(output, (list, tuple)) else [output]
            self.outputs += [to_numpy(x) for x in several if isinstance(x, torch.Tensor)]

    def backward(self, real: Any) -> Any:
        """Return Tensor.backward that records the loss, and the gradients of this call alone."""

        def recorded(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            if not self.modules or self.batch is None:
                return real(loss, *args, **kwargs)
            line = self.frames()[0].f_lineno
            site = self.sites.setdefault(line, len(self.sites))
            parameters = [p for m in self.modules.values() for p in m.parameters()]
            held = [(p, p.grad) for p in parameters]
            for p in parameters:
                p.grad = None
            real(loss, *args, **kwargs)
            gradients = {
                key: {n: to_numpy(p.grad) for n, p in m.named_parameters() if p.grad is not None}
                for key, m in self.modules.items()
            }
            for p, old in held:
                if old is not None:
                    p.grad = old if p.grad is None else old + p.grad
            self.micro.append(
                {
                    "site": site,
                    "batch": self.batch,
                    "loss": float(loss.detach()),
                    "outputs": self.outputs,
                    "gradients": {key: named for key, named in gradients.items() if named},
                }
            )
            self.batch, self.outputs = None, []
            return None

        return recorded

    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.rate = float(optimizer.param_groups[0]["lr"])
        self.before = self.weights() if self.micro else {}

    def after_step(self, *_: Any) -> None:
        if self.micro:
            self.rounds.append(
                {
                    "site": self.micro[0]["site"],
                    "micro": self.micro,
                    "learning_rate": self.rate,
                    "before": self.before,
                }
            )
            self.micro = []

    def result(self) -> dict[str, Any]:
        """Everything recorded, as plain Python and NumPy."""
        trained = {
            key: [n for n, p in m.named_parameters() if p.requires_grad]
            for key, m in self.modules.items()
        }
        for rollout in self.rollouts:
            rollout.pop("mark")
        return {
            "trained": {key: names for key, names in trained.items() if names},
            "rounds": self.rounds,
            "rollouts": self.rollouts,
            "final": self.weights(),
        }


def switch_off_dropout() -> None:
    """Make dropout the identity, whatever rate a model has."""
    functional = torch.nn.functional
    attention = functional.scaled_dot_product_attention

    def identity(input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:  # noqa: A002
        return input

    def without(*args: Any, **kwargs: Any) -> Any:
        return attention(*args[:4], **(kwargs | {"dropout_p": 0.0}))

    functional.dropout = identity
    functional.scaled_dot_product_attention = without


def record(script: Path, full_precision: bool = False) -> dict[str, Any]:
    """Run the script in this process and return the recording. The process is spoiled afterwards."""
    recorder = Recorder(script, read_task(script))
    switch_off_dropout()
    if full_precision:
        real = torch.autocast
        torch.autocast = lambda *args, **kwargs: real(*args, **(kwargs | {"enabled": False}))  # type: ignore
    hooks.register_module_forward_pre_hook(recorder.before_forward)
    hooks.register_module_forward_hook(recorder.after_forward, always_call=True)
    torch.Tensor.backward = recorder.backward(torch.Tensor.backward)  # type: ignore[method-assign]
    register_optimizer_step_pre_hook(recorder.before_step)
    register_optimizer_step_post_hook(recorder.after_step)
    sys.argv = [str(script)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ending:
        if ending.code:
            raise
    return recorder.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("script", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--full-precision", action="store_true", help="switch autocast off")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    recording = record(asked.script, asked.full_precision)
    asked.output.write_bytes(pickle.dumps(recording))
    return 0


if __name__ == "__main__":
    sys.exit(main())
