"""Process of a torch side: a module on the CPU or CUDA, or under torch_xla or torch_tpu."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from torch import nn

from migrate.compiler.program import CompilerProgram, program_of_torch
from migrate.parity.dump.reference import Forced
from migrate.parity.dump.writer import DumpWriter
from migrate.parity.ground.facts import RunFacts
from migrate.parity.ground.requests import Generated, HostDrawn, Training, TrainingDraws
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import InputSet
from migrate.parity.sides.torch import call as torch_call
from migrate.parity.sides.torch import variant as torch_variant
from migrate.parity.sides.torch import weights as torch_weights
from migrate.parity.sides.torch.call import Outputs
from migrate.parity.sides.torch.capture.forced import TorchForcing
from migrate.parity.sides.torch.capture.hooks import Hooks, WritingStore
from migrate.parity.sides.torch.capture.tree import to_numpy
from migrate.parity.sides.torch.capture.xla import Later
from migrate.parity.sides.torch.model import TorchModel
from migrate.parity.sides.torch.variant import DTYPES
from shims import simulate_tpu

# Packages whose versions are reported, by the kind of the side.
_PACKAGES = {"xla": ("torch_xla",), "tpu": ("torch_tpu",)}
_MOVED = "watching the layers changes the outputs by a relative L2 of {size}"
_MOVED_COMPILED = f"{_MOVED} (layers run eagerly, the outputs are of torch.compile)"


class TorchRunner(TorchModel):
    """Torch module (`Runner`). It always runs in eval(), but for `train`."""

    lies_as_torch = False

    def facts(self, settings: SideSettings) -> RunFacts:
        """See `Runner`."""
        where = torch_variant.device(self.kind, settings)
        emulated = torch_variant.is_emulated(where, settings)
        # A plain CPU has one precision; the emulated precisions are the TPU's.
        says = settings.dtype == "float32" and (where.type == "cuda" or emulated)
        packages = ["torch"]
        packages += _PACKAGES.get(self.kind, ())
        packages += ["transformers"] if hasattr(self.module, "config") else []
        return RunFacts(
            self.kind,
            self.shown,
            _device_name(where),
            settings.dtype,
            settings.precision if says or torch_variant.on_tpu(where) else "",
            emulated,
            {name: version for name in packages if (version := _version(name))},
            (simulate_tpu.describe(1),) if where.type == "tpu" else (),
            mode="evaluation mode",
        )

    def arguments(self) -> tuple[tuple[str, bool], ...]:
        """See `Runner`."""
        return torch_call.parameters(self.module)

    def suggest_inputs(self, count: int, seed: int, folder: Path) -> InputSet:
        """See `Runner`."""
        from migrate.parity.sides.torch.inputs import suggest

        return suggest(self.module, self.shown, count, seed, folder)

    def prepare(self, settings: SideSettings, inputs: InputSet, *, drawn: bool = True) -> None:
        """See `Runner`: for lazy modules only; other weights exist from the beginning."""
        lazy = nn.parameter.UninitializedTensorMixin
        if not any(isinstance(tensor, lazy) for tensor in self.module.state_dict().values()):
            return
        cpu, plain = torch.device("cpu"), SideSettings()
        with torch.no_grad(), torch_variant.running(cpu, plain):
            tensors = torch_call.tensors(inputs[0], cpu, plain)
            torch_call.call(self.module, self.module, tensors, self.shown)

    def save_weights(self, file: Path) -> None:
        """See `Runner`."""
        torch_weights.save(self.module, file)

    def load_weights(self, file: Path) -> None:
        """See `Runner`."""
        torch_weights.load(self.module, file, self.shown)
        self.forget()

    def capture(
        self,
        settings: SideSettings,
        inputs: InputSet,
        writer: DumpWriter,
        *,
        layers: bool = True,
        forced: Forced | None = None,
        numbers: Sequence[int] | None = None,
    ) -> float:
        """See `Runner`. With `forced` there is no plain pass: the dump has no outputs, and 0.0 is returned.

        If `settings.batch` splits an input, the calls of its parts are numbered through. In float64, for the
        truth, the first input's plain pass shows whether hooks change anything; if not, other inputs need no
        plain pass.
        """

        def captured() -> float:
            return self._captured(settings, inputs, writer, layers, forced, numbers)

        return self.widest(settings, captured)

    def _captured(
        self,
        settings: SideSettings,
        inputs: InputSet,
        writer: DumpWriter,
        layers: bool,
        forced: Forced | None,
        numbers: Sequence[int] | None,
    ) -> float:
        variant, where = self.kept(settings)
        model = variant.model
        written = WritingStore(writer)
        forcing = None if forced is None else TorchForcing(forced)
        whole = settings.dtype == "float64" and not self.narrowed
        expected = DTYPES[settings.dtype] if whole else None
        hooks = Hooks(model, Later() if where.type == "xla" else written, forcing, expected)
        run = variant.compiled(where) if settings.compiled else model
        eager = settings.dtype == "float64" and where.type == "cpu" and not settings.compiled
        seconds, differs, watched = 0.0, 0.0, layers or forced is not None
        if forced is not None:  # no plain pass shows it
            self.draws(settings, inputs[0])
        with torch.no_grad():
            for number in range(inputs.count) if numbers is None else numbers:
                plain: Outputs | None = None
                if forced is None and not (layers and eager and variant.unmoved):
                    start = time.perf_counter()
                    plain = self.run(run, model, inputs[number], where, settings)
                    seconds += time.perf_counter() - start
                hooked = (
                    self._hooked(hooks, written, model, number, inputs, where, settings)
                    if watched
                    else None
                )
                if forced is not None:
                    continue
                written.outputs(number, plain or hooked or [])
                if plain is not None and hooked is not None:
                    differs = max(differs, _difference(plain, hooked))
                    variant.unmoved = _equal(plain, hooked)
        if watched:
            hooks.declare(writer)
            for note in _notes(model, hooks, forcing):
                writer.note(note)
        if settings.dtype == "float64" and self.narrowed:
            writer.note(self.narrowed)
        if differs:
            writer.note(_MOVED_COMPILED if settings.compiled else _MOVED, differs)
        return seconds

    def gradients(
        self, settings: SideSettings, inputs: InputSet, cotangents: Path, into: Path
    ) -> None:
        """See `Runner`."""
        from migrate.parity.sides.torch.training import gradients

        self.widest(settings, lambda: gradients(self, settings, inputs, cotangents, into))

    def train(self, settings: SideSettings, inputs: InputSet, training: Training) -> list[float]:
        """See `Runner`."""
        from migrate.parity.sides.torch.training import train

        return train(self, settings, inputs, training)

    def in_training(
        self,
        settings: SideSettings,
        inputs: InputSet,
        cotangents: Path,
        into: Path,
        batches: int,
        drawn: tuple[HostDrawn, ...] = (),
    ) -> TrainingDraws:
        """See `Runner`."""
        from migrate.parity.sides.torch.modes import in_training

        return self.widest(
            settings,
            lambda: in_training(self, settings, inputs, cotangents, into, batches, drawn),
        )

    def generate(
        self, settings: SideSettings, inputs: InputSet, tokens: int, output: str
    ) -> Generated:
        """See `Runner`."""
        from migrate.parity.sides.torch.generation import generate

        return generate(self, settings, inputs, tokens, output)

    def program(self, settings: SideSettings, inputs: InputSet) -> CompilerProgram:
        """Lower the model on the first input with torch_xla."""
        on_host = replace(settings, device="cpu")
        model, where = self.variant(on_host)
        return program_of_torch(model, torch_call.tensors(inputs[0], where, on_host))

    def _hooked(
        self,
        hooks: Hooks,
        written: WritingStore,
        model: nn.Module,
        number: int,
        inputs: InputSet,
        where: torch.device,
        settings: SideSettings,
    ) -> Outputs:
        hooks.begin(number)
        written.begin(number)
        parts = []
        settings = self.effective(settings)
        for chunk in torch_call.chunks(inputs[number], settings.batch):
            draws = bool(self._draws)
            with torch_variant.running(where, settings, draws=draws), hooks.attached():
                tensors = torch_call.tensors(chunk, where, settings)
                outputs = torch_call.call(model, model, tensors, self.shown)
            if isinstance(hooks.store, Later):
                outputs = hooks.store.read(written, outputs)
            parts.append([(path, tensor.cpu()) for path, tensor in outputs])
        return torch_call.joined(parts, self.shown)


def _difference(plain: Outputs, hooked: Outputs) -> float:
    """Largest relative L2 distance of an output with hooks from the output without."""
    worst, with_hooks = 0.0, dict(hooked)
    for path, tensor in plain:
        if path not in with_hooks or not tensor.is_floating_point():
            continue
        a, b = (to_numpy(t).astype(np.float64) for t in (tensor, with_hooks[path]))
        same = np.isfinite(a) & np.isfinite(b)
        norm = float(np.linalg.norm(a[same]))
        if norm:
            worst = max(worst, float(np.linalg.norm((a - b)[same])) / norm)
    return worst


def _equal(plain: Outputs, hooked: Outputs) -> bool:
    return [path for path, _ in plain] == [path for path, _ in hooked] and all(
        torch.equal(plain_tensor, other)
        for (_, plain_tensor), (_, other) in zip(plain, hooked, strict=True)
    )


def _notes(
    model: nn.Module,
    hooks: Hooks,
    forcing: TorchForcing | None,
) -> list[str]:
    notes = list(forcing.notes) if forcing is not None else []
    if hooks.odd:
        name, dtype = next(iter(hooks.odd.items()))
        more = f" (and {len(hooks.odd) - 1} more)" if len(hooks.odd) > 1 else ""
        notes.append(
            f"the truth is not float64 throughout: {name or 'the model'}{more} gives {dtype}"
        )
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        notes.append("layers inside TorchScript cannot be watched")
    attention = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
    if any(isinstance(module, attention) for module in model.modules()):
        notes.append("layers were watched with torch's fast path of attention off: it skips them")
    return notes


def _device_name(where: torch.device) -> str:
    if where.type == "cuda":
        return f"{where} ({torch.cuda.get_device_name(where)})"
    if where.type == "tpu":
        return "XLA:CPU as a TPU"
    if where.type != "xla":
        return str(where)
    import torch_xla.runtime as xr

    if not torch_variant.on_tpu(where):
        return f"XLA:{xr.device_type()}"
    from torch_xla import tpu

    return f"TPU v{tpu.version()}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
