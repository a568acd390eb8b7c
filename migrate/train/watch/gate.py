"""The gate before a port: the statements of the loss give the script's own loss and gradients."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import pickle
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from flax import linen
from torch import nn

from converters.errors import ConversionError
from converters.graph.recording.modes import preserved
from migrate.port.compiler import compiled
from migrate.port.errors import PortError
from migrate.port.weights import write_weights
from migrate.prove.record import listen
from migrate.train.noise import noise, torch_noise
from migrate.train.optimizer.recorded import RecordedClip
from migrate.train.watch.calls import SeenCall, frame_calls, observe
from migrate.train.watch.evaluations import EvaluationWatch
from migrate.train.watch.functions import PortedFunction, outputs, run, step_functions
from migrate.train.watch.host_draws import HostProbe, host_state
from migrate.train.watch.listening import autocast_without_effect, wrappers_as_modules
from migrate.train.watch.mistakes import Mistake, mistaken
from migrate.train.watch.runner import PORT
from migrate.train.watch.sizes import broken, difference, fits, form_names, with_forms
from migrate.train.watch.steady import Steady
from migrate.train.watch.step import (
    Bound,
    StepBase,
    bind,
    build,
    children,
    class_name,
    flat,
    without_wrapper,
)
from migrate.train.watch.taken import taken_out
from migrate.train.watch.terms import rounding_of_loss, size_of_terms
from migrate.train.watch.values import (
    attributes,
    changed,
    held_modules,
    holds_data,
    leaves,
    plain,
    settings,
    snapshot,
)

# Relative differences up to which the slice counts as the script's own loss: another order of sums.
_LIMIT = 1e-6
# A loss that is smaller than this part of the first one's terms may be what their rounding leaves of it.
_CANCELS = 0.1
# Names that no method of a step can have: those of modules, of its base, and of Flax's modules.
_RESERVED = (*dir(StepBase), *dir(linen.Module))
# A loss that unrolls a loop over tokens has a form for each length.
_MOST_FORMS, _MOST_SIZES = 6, 64
# Batches in which a number beside the tensors is tried: what no loss of them reads is no part of it.
_TRIES = 3
WEIGHTS, STEP_FILE = "weights", "migrate_step.py"


class Refusal(Exception):  # noqa: N818 (a decision, reported by the parent process)
    """The script cannot be written as a program.

    Args:
        what: the obstacle, without its position.
        remedy: what to do.
        line: line of the script; 0: the line that runs.
        changing: names whose numbers change between steps, if that is the obstacle.
        computed: names that the model computes from such numbers, if that is the obstacle.
    """

    def __init__(
        self,
        what: str,
        remedy: str,
        line: int = 0,
        changing: Sequence[str] = (),
        computed: Sequence[str] = (),
    ) -> None:
        super().__init__(what)
        self.what, self.remedy, self.line = what, remedy, line
        self.changing, self.computed = tuple(changing), tuple(computed)


class Gate:
    """The step of a script, once it was found to be the script's own.

    Args:
        question: what the parent asks.
        folder: receives the port and its weights.
        frame: the frame that calls `backward`.
        arguments: what the constructors of a step's modules were called with: path → name → value.
        noise: whether the script draws random numbers where it computes its loss. Each run of the step draws
            those of the comparison.

    Attributes:
        is_drawn: whether the step draws random numbers.
    """

    is_drawn = False
    # Sum of the losses of earlier backwards of the first update.
    earlier: torch.Tensor | None = None
    # The script's evaluations, which become methods of the step.
    evaluations: EvaluationWatch | None = None
    # Parameters of all optimizers, if there are several: identity → number of the optimizer, position in it.
    owners: Mapping[int, tuple[int, int]] | None = None

    def __init__(
        self,
        question: Mapping[str, Any],
        folder: Path,
        frame: FrameType,
        arguments: Callable[[nn.Module], Mapping[str, Mapping[str, Any]]],
        *,
        noise: bool = False,
    ) -> None:
        self._question, self._folder, self._arguments = question, folder, arguments
        self._noise = torch_noise if noise else nullcontext
        self._namespace = dict(frame.f_globals)
        self._file = frame.f_code.co_filename
        self.inputs: dict[tuple[str, tuple[Any, ...]], str] = {}
        self.data: list[str] = []
        self.step: nn.Module = nn.Module()
        self._ported_step: nn.Module = self.step
        self._difference = self._size = 0.0
        self._mistakes: list[Mistake] = []
        self._functions: list[PortedFunction] = []
        self._function_values: dict[str, tuple[dict[str, Any], list[Any]]] = {}
        self.left_out: list[str] = []
        self._fixed = False
        self._port: Any = None  # as the compiler gave it
        self._first: Mapping[str, Any] = {}  # the first batch
        # Settings in a batch that were not read, and in how many batches.
        self._unread: dict[tuple[str, tuple[Any, ...]], int] = {}
        self._sizes: list[dict[str, torch.Tensor]] = []  # a batch of each size
        self._forms: list[
            dict[str, torch.Tensor]
        ] = []  # those of them that need a form of their own

    def open(
        self,
        loss: torch.Tensor,
        run: Callable[[], None],
        values: Mapping[str, Any],
        data: Mapping[str, Any],
        buffers: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        """Run the script's backward, then the slice, and compare them.

        Without a port, known mistakes are made in the slice instead, for the causes of a difference.

        Raises:
            Refusal: they differ.
        """
        missing = [
            name for name in self._question["free"] if name not in {**self._namespace, **values}
        ]
        if missing:
            raise Refusal(
                f"{missing[0]} has no value yet before the loss is computed",
                "assign it before the first statement that computes the loss",
            )
        named = {**self._namespace, **values, **data}
        named = {name: self._without_wrapper(name, named[name]) for name in self._question["free"]}
        bound = bind(self._question["free"], named)
        drawn = [name for name, value in bound.constants.items() if _draws(value)]
        if drawn:
            raise Refusal(
                f"{drawn[0]} gives other values each time",
                "draw the batch before the loss is computed",
                changing=drawn,
            )
        if not bound.data:
            raise Refusal(
                "the loss reads no tensor of a batch",
                "give the batch to the step by name",
                changing=[name for name, value in bound.constants.items() if holds_data(value)],
            )
        if new := [name for name in bound.data if name not in data]:
            raise Refusal(
                f"{new[0]} gets tensors in the statements that compute the loss, which the next step reads",
                "start each step from its batch and the weights alone",
            )
        self._bound, self.inputs, self.data = bound, dict(bound.inputs), list(bound.data)
        modules = [
            *bound.modules.values(),
            *(module for value in bound.objects.values() for _, module in held_modules(value)),
        ]
        dirty = [
            p
            for m in modules
            for p in m.parameters()
            if p.grad is not None and p.grad.any() and self.is_own(p)
        ]
        if dirty and self.earlier is None:
            raise Refusal("gradients are there before the first backward", "start with zero_grad()")
        run()
        if self.earlier is not None:
            loss = loss.detach() + self.earlier
        with _as_it_was(modules), self._in_place():
            called = self._outermost(bound)
            children_of_step = self._renamed(children(bound, called, self._question["text"]))
            self.step = self._built(bound, children_of_step)
            self._require_equal(loss, data)
            with self._noise():
                self._size = size_of_terms(lambda: self.step(**flat(bound, data)))
            tensors = flat(bound, data)
            with self._noise():
                self._taken = taken_out(self.step, self.inputs, tensors, self._question["text"])
            with self._noise():
                contained = contained_parts(self.step)
                of_parts: list[np.ndarray[Any, Any]] = []
                *self._seen, live = observe(
                    self.step, flat(bound, data), self._file, contained.values(), of_parts
                )
            self._contained = contained, of_parts
            self._functions = self._callable(
                step_functions(live, children_of_step, bound.objects, _RESERVED)
            )
        attributes, names = self._question["reads"]
        self._steady = Steady(
            self.step, bound.objects, self._namespace, attributes, names, bound.constants
        )
        before = {id(buffer): value for buffer, value in buffers}
        kept = {id(b): n for n, b in self.step.named_buffers(remove_duplicate=False)}
        self._weights = self.state()
        self._weights |= {
            kept[number]: value
            for number, value in before.items()
            if number in kept and kept[number] in self._weights
        }
        if self._question["ports"]:
            self._first = {name: snapshot(data[name]) for name in self.data}
        elif not self._question.get("wide"):
            after = self.state()
            self.step.load_state_dict(self._weights)  # statistics are those before the first loss
            with self._in_place():
                mistakes = mistaken(self.step, flat(bound, data), self._noise)
            own = {name for name, p in self.step.named_parameters() if self.is_own(p)}
            self._mistakes = [
                replace(m, gradients={n: g for n, g in m.gradients.items() if n in own})
                for m in mistakes
            ]
            self.step.load_state_dict(after)

    def _in_place(self) -> AbstractContextManager[Any]:
        """Let one backward do the work of several: statements between them may change tensors in place."""
        if self.earlier is None:
            return nullcontext()
        return torch.autograd.graph.allow_mutation_on_saved_tensors()

    def is_own(self, parameter: torch.Tensor) -> bool:
        """Whether the update that is recorded may change a parameter: another optimizer does not have it."""
        if self.owners is None or id(parameter) not in self.owners:
            return True
        return self.owners[id(parameter)][0] == self._question["optimizer"]

    def _renamed(self, modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
        """Children of the step by the names that they have in the updates before."""
        if self.owners is None:
            return dict(modules)
        known = {json.dumps(mark): name for name, mark in self._question["known"]}
        names = {}
        for name, module in modules.items():
            before = known.get(json.dumps(self._mark(module)))
            if before is None and name in known.values():
                before = f"{name}_{self._question['name']}"
            names[before or name] = module
        return names

    def _called(self) -> list[tuple[str, int]]:
        """Children of the step, each with the first line of a statement that names it."""
        lines = Path(self._file).read_text().splitlines()
        texts = {
            first: "\n".join(lines[first - 1 : last])
            for first, last in self._question["statements_of_loss"]
        }
        named = [(name, module) for name, module in self._bound.modules.items()]
        for value in self._bound.objects.values():
            named += [(f".{name}", module) for name, module in held_modules(value)]
        result = []
        for child, module in self.step.named_children():
            own = [n for n, held in named if without_wrapper(held) is module]
            pattern = "|".join(rf"{re.escape(n)}\b" for n in own)
            result += [(child, n) for n, text in texts.items() if own and re.search(pattern, text)]
        return result

    def _mark(self, module: nn.Module) -> list[Any]:
        """Mark of a module that is the same in each run of the script: its parameters' places in optimizers.

        Of parameters that no optimizer has, the values: nothing changes them.
        """
        owners = self.owners or {}
        return [
            list(owners[id(p)])
            if id(p) in owners
            else hashlib.sha256(plain(p).tobytes()).hexdigest()
            for p in module.parameters()
        ]

    def _without_wrapper(self, name: str, value: Any) -> Any:
        """The module of a wrapper for several ranks, if the statements only call the wrapper."""
        inner = without_wrapper(value)
        return value if f"{name}.module" in self._question["text"] else inner

    def _built(self, bound: Bound, modules: Mapping[str, nn.Module]) -> nn.Module:
        file = self._folder / STEP_FILE
        question = self._question
        return build(
            bound,
            question["text"],
            question["result"],
            self._namespace,
            modules,
            file,
            title=class_name(question["name"]),
        )

    def _callable(self, functions: Sequence[PortedFunction]) -> list[PortedFunction]:
        """Functions that run again, and give tensors; each with what it gives."""
        modules = dict(self.step.named_children())
        known = []
        for function in functions:
            tensors, drawn = _moved(function.tensors()), noise()
            try:
                with torch.no_grad(), torch_noise(drawn):
                    result = run(function, tensors, modules, self._named)
            except Exception:
                continue
            answer = outputs(result)
            if drawn.used:
                self.left_out.append(f"method {function.method}: it draws random numbers")
            elif answer is not None:
                result, values = answer
                known.append(replace(function, result=result))
                self._function_values[function.method] = (
                    {name: plain(tensor) for name, tensor in tensors.items()},
                    [plain(tensor) for tensor in values],
                )
        return known

    def _named(self, name: str) -> Any:
        return self.step.named(name)

    def _outermost(self, bound: Bound) -> list[nn.Module]:
        """Modules that the statements call, without those inside their calls."""
        step = self._built(bound, {})
        called: list[nn.Module] = []
        depth = 0
        original = nn.Module.__call__

        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if depth == 1:
                called.append(module)
            depth += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                depth -= 1

        setattr(nn.Module, "__call__", call)  # noqa: B010
        try:
            with torch.no_grad():
                step(**flat(bound, bound.data))
        finally:
            setattr(nn.Module, "__call__", original)  # noqa: B010
        return called

    def _require_equal(self, loss: torch.Tensor, data: Mapping[str, Any]) -> None:
        """Gate 0: loss and gradients of the slice are those of the script."""
        drawn, before = noise(), host_state()
        with self._noise(drawn):
            own = self.step(**flat(self._bound, data))
        self.is_drawn = drawn.used
        if host_state() != before and (names := self._drawing_on_host(data)):
            raise Refusal(
                f"{names[0]} draws random numbers of the host",
                "draw the batch before the loss is computed",
                changing=names,
            )
        if not isinstance(own, torch.Tensor) or own.numel() != 1:
            raise Refusal(
                "the statements before backward give no loss", "report this with the script"
            )
        parameters = dict(self.step.named_parameters())
        trained = {n: p for n, p in parameters.items() if p.requires_grad and self.is_own(p)}
        gradients = torch.autograd.grad(own, list(trained.values()), allow_unused=True)
        worst = _distance(own, loss)
        for (name, parameter), gradient in zip(trained.items(), gradients, strict=True):
            theirs = parameter.grad
            zero = torch.zeros_like(parameter)
            worst_here = _distance(
                zero if gradient is None else gradient, zero if theirs is None else theirs
            )
            if not worst_here <= _LIMIT:  # NaN too
                raise Refusal(
                    f"the statements that compute the loss, run again, give another gradient of {name} "
                    f"(relative difference {worst_here:.1e})",
                    "compute the loss from the batch and the model alone",
                )
            worst = max(worst, worst_here)
        if not _distance(own, loss) <= _LIMIT:
            raise Refusal(
                f"the statements that compute the loss, run again, give {own.item():.8g}, "
                f"not {loss.item():.8g}",
                "compute the loss from the batch and the model alone",
            )
        self._difference = worst

    def _drawing_on_host(self, data: Mapping[str, Any]) -> list[str]:
        """Names that the statements call and that draw from `random` or `numpy.random`: `mixup_fn(x, y)`."""
        probes = {
            name: HostProbe(value)
            for name, value in self._bound.constants.items()
            if callable(value) and not isinstance(value, type)
        }
        bound = replace(self._bound, constants={**self._bound.constants, **probes})
        with torch.no_grad(), self._noise():
            self._built(bound, dict(self.step.named_children()))(**flat(bound, data))
        return [name for name, probe in probes.items() if probe.draws]

    def _write_port(self, data: Mapping[str, Any]) -> None:
        tensors = flat(self._bound, data)
        flags = {module: module.training for module in self.step.modules()}
        others = [p for p in self.step.parameters() if p.requires_grad and not self.is_own(p)]
        for parameter in others:  # frozen in this update
            parameter.requires_grad_(False)
        state, after = torch.get_rng_state(), self.state()
        shown = self._question["shown"]
        try:
            with listen.dropout_as_written(), autocast_without_effect(), wrappers_as_modules():
                self._fixed = self._can_fix(is_refused=False)
                evaluations = self._evaluations()
                port, self._port = self._ported(data, tensors, shown, evaluations)
                if evaluations and port.refused:
                    # What training does comes first: a port has it in all of its methods, or in none.
                    for module, training in flags.items():
                        module.training = training
                    alone, own = self._ported(data, tensors, shown)
                    if port.refused != alone.refused:
                        assert self.evaluations is not None
                        self.evaluations.refuse("", f"with it, {self._in_script(port.refused)}")
                        port, self._port = alone, own
                for module, training in flags.items():
                    module.training = training
                if port.refused and not self._fixed and self._can_fix(is_refused=True):
                    self._fixed = True
                    port, self._port = self._ported(data, tensors, shown, self._evaluations())
            folder = self._folder / WEIGHTS
            shutil.rmtree(folder, ignore_errors=True)  # of a port without these forms
            folder.mkdir()
            for module, training in flags.items():
                module.training = training
            self.step.load_state_dict(self._weights)
            example = [tuple(t.shape) for t in tensors.values() if t.is_floating_point()] or None
            weights = write_weights(
                self.step, "program", port.constants, example, folder, self._folder
            )
        except (PortError, ConversionError) as error:
            what = self._in_script(str(getattr(error, "what", error)))
            raise Refusal(
                f"its loss cannot be ported: {what}", getattr(error, "remedy", "")
            ) from None
        finally:
            for parameter in others:
                parameter.requires_grad_(True)
            for module, training in flags.items():
                module.training = training
            torch.set_rng_state(state)
            self.step.load_state_dict(after)
        port = replace(
            port,
            write=None,
            refused=self._in_script(port.refused),
            notes=tuple(map(self._in_script, port.notes)),
        )
        (self._folder / PORT).write_bytes(pickle.dumps((port, weights)))

    def _in_script(self, text: str) -> str:
        """A message with lines of the script for those of the step's file."""
        positions, otherwise = self._question["positions"], self._question["shown"]
        step: Any = self._ported_step

        def position(match: re.Match[str]) -> str:
            at: str = step.position(int(match[1]), positions, otherwise)
            return at

        return re.sub(rf"\b{re.escape(STEP_FILE)}:(\d+)", position, text)

    def _can_fix(self, *, is_refused: bool) -> bool:
        """Whether the port needs, and can have, each module in the one mode that it has in the script.

        It needs this if the modes are not alike, or what training does beside dropout cannot be a mode of
        the port. Without a layer of dropout its mode would switch nothing: one recording is enough.
        Statistics of a batch, and dropout, are written by mode alone.
        """
        modes = {child.training for child in self.step.children()}
        dropping = (nn.modules.dropout._DropoutNd, nn.RNNBase)
        drops = any(isinstance(module, dropping) for module in self.step.modules())
        needed = is_refused or not drops or len(modes) > 1 or bool(unlike_modes(self.step))
        return (
            needed
            and any(module.training for module in self.step.modules())
            and not self._batch_statistics()
            and not listen.switched_off()
        )

    def _batch_statistics(self) -> list[str]:
        """Layers of the step that use, and move, the statistics of a batch."""
        return [
            name
            for name, module in self.step.named_modules()
            if module.training and getattr(module, "track_running_stats", False)
        ]

    def _evaluations(self) -> list[PortedFunction]:
        """The script's evaluations as methods of the step."""
        if self.evaluations is None:
            return []
        children = dict(self.step.named_children())
        taken = {*_RESERVED, *(function.method for function in self._functions), *children}
        return self.evaluations.methods(children, self._bound.objects, taken)

    def _ported(
        self,
        data: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor],
        shown: str,
        evaluations: Sequence[PortedFunction] = (),
    ) -> Any:
        """The port, with forms for other sizes; functions of the script and evaluations as methods.

        Those that are not ported are left out.
        """
        forms = dict(zip(form_names(len(self._forms)), self._forms, strict=True))
        while True:
            step = build(
                self._bound,
                self._question["text"],
                self._question["result"],
                self._namespace,
                dict(self.step.named_children()),
                self._folder / STEP_FILE,
                [*self._functions, *evaluations],
                class_name(self._question["name"]),
                [*forms],
            )
            step.fixed = self._fixed
            self._ported_step = step
            every = [*self._functions, *evaluations]
            if not self._functions:
                self.step = step
            methods = {function.method: function.tensors() for function in every}
            try:
                port = compiled(
                    step,
                    tensors,
                    shown,
                    methods={**forms, **methods},
                    arguments=self._arguments(step),
                )
                shapes = [_shapes(form) for form in self._forms]
                return with_forms(port, _shapes(tensors), shapes), port
            except (PortError, ConversionError) as error:
                if not every:
                    raise
                what = str(getattr(error, "what", error))
                named = re.match(r"method (\w+)[: ]", what)
                bad = named.group(1) if named else None
                if evaluations and bad not in {function.method for function in self._functions}:
                    assert self.evaluations is not None
                    self.evaluations.refuse(bad or "", self._in_script(what))
                    evaluations = [f for f in evaluations if bad and f.method != bad]
                    continue
                self.left_out.append(self._in_script(what))
                self._functions = [f for f in self._functions if bad and f.method != bad]

    def note_sizes(self, data: Mapping[str, Any]) -> None:
        """Note a batch if no one before it had its sizes. Once the loss is ported, the port follows them.

        Raises:
            Refusal: the loss cannot be ported for these sizes too.
        """
        if not self._question["ports"] or not all(_has(data, *key) for key in self.inputs):
            return
        tensors = flat(self._bound, {name: data[name] for name in self.data})
        if _shapes(tensors) not in map(_shapes, self._sizes) and len(self._sizes) < _MOST_SIZES:
            self._sizes.append({name: tensor.detach().clone() for name, tensor in tensors.items()})
            if self._port is not None:
                self._follow()

    def require_settings(self, data: Mapping[str, Any]) -> None:
        """Require that numbers and strings in a batch are those of the first, where the loss reads them.

        Raises:
            Refusal: the loss is another one with one of them.
        """
        if not all(_has(data, *key) for key in self.inputs):
            return
        for root in self.data:
            now = dict(settings(data[root]))
            for path, first in settings(self._bound.data[root]):
                known = self._unread.get((root, path), 0)
                if path not in now or now[path] == first or known == _TRIES:
                    continue
                if self._reads(data, root, path, now[path]):
                    name = root + "".join(f"[{key!r}]" for key in path)
                    raise Refusal(
                        f"{name} is {first!r} in the first batch and {now[path]!r} in a later one: the loss "
                        "computes otherwise with it",
                        "give all batches the same, or let the loss read it from a tensor of the batch",
                        self._question["line"],
                    )
                self._unread[root, path] = known + 1

    def _reads(self, data: Mapping[str, Any], root: str, path: tuple[Any, ...], other: Any) -> bool:
        """Whether the loss of a batch is another one, or has another gradient, with another setting."""
        bindings = self.step.__dict__["bindings"]
        bound = bindings.bound
        tensors = flat(self._bound, {name: data[name] for name in self.data})
        own = [p for p in self.step.parameters() if p.requires_grad and self.is_own(p)]
        results = []
        for others in ({}, {path: other}):
            value = changed(bound.data[root], lambda _, tensor: tensor, others=others)
            bindings.bound = replace(bound, data={**bound.data, root: value})
            try:
                with _as_it_was([self.step]), self._in_place(), self._noise():
                    loss = self.step(**tensors)
                    gradients = torch.autograd.grad(loss, own, allow_unused=True)
            except (RuntimeError, ValueError, IndexError, TypeError):
                return True  # the sizes of this batch need its own setting
            finally:
                bindings.bound = bound
            values = [loss.detach(), *(torch.zeros(()) if g is None else g for g in gradients)]
            results.append([torch.nan_to_num(value) for value in values])
        return any(
            a.shape != b.shape or _distance(a, b) > _LIMIT for a, b in zip(*results, strict=True)
        )

    def write_port(self) -> None:
        """Write the loss as Flax source, for the sizes of all batches until now.

        Raises:
            Refusal: it cannot be ported.
        """
        if self._question["ports"] and self._port is None:
            self._write_port(self._first)
            self._follow()
        elif self._question["ports"] and self.evaluations is not None and self.evaluations.fresh:
            self._write_port(self._first)

    def _follow(self) -> None:
        """Port the loss once more, while a batch has sizes for which the port does not hold."""
        while others := [form for form in self._sizes if not self._fits(form)]:
            # Of batches that differ from the first one in the same way, one is enough.
            unlike = {difference(self._port, _shapes(form)): form for form in reversed(others)}
            self._forms += unlike.values()
            size = broken(self._port, _shapes(others[0]))[0]
            why = f"batches have different sizes, but the model is ported for {size} only"
            remedy = "pad the batches to one size"
            if len(self._forms) > _MOST_FORMS:
                raise Refusal(why, remedy, self._question["line"])
            try:
                self._write_port(self._first)
            except Refusal as refusal:
                raise Refusal(f"{why} ({refusal.what})", remedy, self._question["line"]) from None

    def _fits(self, form: Mapping[str, torch.Tensor]) -> bool:
        """Whether the port holds for a batch; other numbers of dimensions are reported elsewhere."""
        shapes = _shapes(form)
        unlike = any(len(shapes[a.name]) != len(a.shape) for a in self._port.inputs)
        return unlike or fits(self._port, shapes)

    # ------------------------------------------------------------------ what the recorder asks

    def facts(self) -> dict[str, Any]:
        """Facts about the step, for the record."""
        return {
            "inputs": {argument: key for key, argument in self.inputs.items()},
            "difference": self._difference,
            "size_of_terms": self._size,
            "children": {
                name: type(module).__name__ for name, module in self.step.named_children()
            },
            "called": self._called(),
            "others": [n for n, p in self.step.named_parameters() if not self.is_own(p)],
            "marks": [(name, self._mark(module)) for name, module in self.step.named_children()],
            "state": self._weights,
            "training": {name: m.training for name, m in self.step.named_children()},
            "noise": self.is_drawn,
            "unlike": unlike_modes(self.step),
            "on_gpu": any(parameter.is_cuda for parameter in self.step.parameters()),
            "dropout": listen.switched_off(),
            "batch_statistics": self._batch_statistics(),
            "tied": self._tied(),
            "outputs": self._seen[0],
            "contained": self._contained[0],
            "outputs_of_parts": self._contained[1],
            "calls": self._seen[1],
            "taken": self._taken,
            "mistakes": self._mistakes,
            "function_values": self._function_values,
            **self.port_facts(),
        }

    def port_facts(self) -> dict[str, Any]:
        """Facts that the port decides."""
        return {
            "fixed": self._fixed,
            "functions": [function.recorded() for function in self._functions],
            "functions_left": self.left_out,
        }

    def rounding(self, data: Mapping[str, Any]) -> float:
        """Rounding of the terms of the loss of a batch with the weights as they are, relative to the loss."""
        tensors = flat(self._bound, data)
        own = [p for p in self.step.parameters() if p.requires_grad and self.is_own(p)]
        with _as_it_was([self.step]), self._in_place(), self._noise():
            return rounding_of_loss(lambda: self.step(**tensors), own)

    def may_cancel(self, loss: float) -> bool:
        """Whether a loss is so small beside the terms of the first one that its own terms may cancel."""
        return abs(loss) < _CANCELS * self._size

    def _tied(self) -> dict[str, str]:
        """Further names of parameters that have several, with the first."""
        first = self.names()
        every = self.step.named_parameters(remove_duplicate=False)
        return {name: first[id(p)] for name, p in every if first[id(p)] != name}

    def names(self) -> dict[int, str]:
        """Names of the step's parameters, by the tensors' identities."""
        return {id(p): name for name, p in self.step.named_parameters()}

    def gradients(self) -> dict[str, torch.Tensor | None]:
        """Gradients of the step's parameters, as they are held now: later calls change them."""
        parameters = self.step.named_parameters()
        return {name: p.grad if self.is_own(p) else None for name, p in parameters}

    def scale_gradients(self, factor: float) -> None:
        """Multiply the gradients of the step's parameters."""
        for parameter in self.step.parameters():
            if parameter.grad is not None and factor != 1:
                parameter.grad.mul_(factor)

    def copied_gradients(self) -> dict[str, torch.Tensor | None]:
        """Copies of the gradients of the step's parameters."""
        return {
            name: None if gradient is None else gradient.detach().clone()
            for name, gradient in self.gradients().items()
        }

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of the step's weights and buffers."""
        return {name: tensor.detach().clone() for name, tensor in self.step.state_dict().items()}

    def running(self, frame: FrameType | None) -> list[SeenCall]:
        """Functions of the script that are running, from a frame on."""
        return frame_calls(frame, {id(m): name for name, m in self.step.named_children()})

    def trained_names(self, frame: FrameType | None) -> dict[tuple[str, int], list[str]]:
        """Names of trained modules, optimizers and schedules in each frame of the script from this on."""
        trained = {id(p) for p in self.step.parameters() if p.requires_grad and self.is_own(p)}

        def is_trained(value: Any) -> bool:
            if isinstance(value, nn.Module):
                return any(id(parameter) in trained for parameter in value.parameters())
            schedule = torch.optim.lr_scheduler.LRScheduler
            return isinstance(value, torch.optim.Optimizer | schedule)

        names: dict[tuple[str, int], list[str]] = {}
        file = frame.f_code.co_filename if frame is not None else ""
        while frame is not None:
            code = frame.f_code
            if code.co_filename == file:
                names[code.co_name, code.co_firstlineno] = [
                    *(name for name, value in frame.f_locals.items() if is_trained(value)),
                    *(
                        f"{name}.{attribute}"
                        for name, value in frame.f_locals.items()
                        for attribute, held in attributes(value)
                        if is_trained(held)
                    ),
                ]
            frame = frame.f_back
        return names

    def module_places(self, frame: FrameType | None) -> dict[tuple[str, int], dict[str, str]]:
        """Expression of each trained module of the step in each frame of the script that holds it."""
        places: dict[tuple[str, int], dict[str, str]] = {}
        trained = {
            name: module
            for name, module in self.step.named_children()
            if any(p.requires_grad and self.is_own(p) for p in module.parameters())
        }
        file = frame.f_code.co_filename if frame is not None else ""
        while frame is not None:
            code = frame.f_code
            if code.co_filename == file:
                held = dict(_expressions(frame.f_globals)) | dict(_expressions(frame.f_locals))
                places[code.co_name, code.co_firstlineno] = {
                    name: held[id(module)] for name, module in trained.items() if id(module) in held
                }
            frame = frame.f_back
        return places

    def compare_state(self, frame: FrameType, values: Mapping[str, Any]) -> None:
        """Report modules, modes, frozen parameters and constants that are not those of the first step.

        Args:
            frame: the frame that calls `backward`.
            values: values of the statements' free names.

        Raises:
            Refusal: one differs.
        """
        for name, module in self._bound.modules.items():
            if self._without_wrapper(name, values.get(name, module)) is not module:
                raise Refusal(
                    f"{name} is another module in a later step", "train one model from start to end"
                )
        change = self._steady.change(frame.f_globals, values)
        if change:
            raise Refusal(
                change,
                "keep it from the first update to the last",
                changing=self._steady.changing(values),
            )

    def clip(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], line: int
    ) -> RecordedClip:
        """Describe a clipping of gradients."""
        function = inspect.unwrap(getattr(torch.nn.utils.clip_grad, name))
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        parameters = bound.arguments["parameters"]
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        known = self.names()
        names = tuple(
            known.get(id(p), "a parameter outside of the loss")
            for p in parameters
            if id(p) in known or p.grad is not None
        )
        if name == "clip_grad_value_":
            limit = float(bound.arguments["clip_value"])
            return RecordedClip("value", limit, names=names, line=line)
        limit, order = (float(bound.arguments[key]) for key in ("max_norm", "norm_type"))
        return RecordedClip("norm", limit, order, names, line)


def _has(data: Mapping[str, Any], root: str, path: tuple[Any, ...]) -> bool:
    return root in data and path in {known for known, _ in leaves(data[root])}


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _moved(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors, numbers among them some per cent away: at the start a policy is equal to its reference.

    A function that compares the two gives what rounding decides there.
    """
    generator = torch.Generator().manual_seed(0)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float32)
        return (tensor * (0.95 + 0.1 * noise)).to(tensor.dtype)

    return {name: moved(tensor) for name, tensor in tensors.items()}


def _expressions(values: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield identities of modules with an expression for each: the shortest of a module comes last."""
    named = {n: v for n, v in values.items() if n.isidentifier() and not n.startswith("__")}
    tops = [(n, v) for n, v in named.items() if isinstance(v, nn.Module)]
    for name, value in named.items():
        tops += [
            (f"{name}.{attribute}", held)
            for attribute, held in attributes(value)
            if isinstance(held, nn.Module)
        ]
    every = [
        (id(module), f"{top}.{name}".rstrip("."))
        for top, held in tops
        for name, module in held.named_modules()
        if all(part.isidentifier() for part in name.split(".") if part)
    ]
    yield from sorted(every, key=lambda item: -item[1].count("."))


def contained_parts(step: nn.Module) -> dict[str, str]:
    """Parts of the script's modules that hold nothing beside them: name → name in the step."""
    parts: dict[str, str] = {}
    children = dict(step.named_children())
    for name, module in children.items():
        held = [*module._parameters.values(), *module._buffers.values()]
        inner = {
            n: part for n, part in module.named_children() if any(True for _ in part.parameters())
        }
        if type(module).__module__ != "__main__" or any(value is not None for value in held):
            continue
        if len(inner) > 1 and not inner.keys() & (children.keys() | parts.keys()):
            parts |= {part: f"{name}.{part}" for part in inner}
    return parts


def unlike_modes(step: nn.Module) -> tuple[str, ...]:
    """Names of modules whose mode is another one than `train(mode)` of the model around them sets.

    A port has one mode for each model: that of its outermost module.
    """
    flags = {name: module.training for name, module in step.named_modules()}
    with preserved(step):
        for child in step.children():
            child.train(child.training)
        return tuple(
            name for name, module in step.named_modules() if module.training != flags[name]
        )


def _draws(value: Any) -> bool:
    """Whether a value gives something else each time it is asked: a random generator, an iterator."""
    generators = torch.Generator | random.Random | np.random.Generator | np.random.RandomState
    return isinstance(value, generators | Iterator)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    if torch.equal(a, b):
        return 0.0
    size = float(b.detach().double().norm())
    distance = float((a.detach().double() - b.detach().double()).norm())
    return distance / size if size else distance


@contextmanager
def _as_it_was(modules: list[nn.Module]) -> Iterator[None]:
    """Undo what a second run of the loss changes: buffers and the generator."""
    buffers = [buffer for module in modules for buffer in module.buffers()]
    kept = [buffer.detach().clone() for buffer in buffers]
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        with torch.no_grad():
            for buffer, value in zip(buffers, kept, strict=True):
                buffer.copy_(value)
