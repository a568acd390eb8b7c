"""Evaluations of a script: calls of its model outside of the training step, without gradients.

What is run decides, not a name: a call of a module with trained parameters, by a line of the script that is
no part of the loss, without gradients or in evaluation mode.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as hooks

from migrate.train.frames import COMPREHENSIONS, Frame
from migrate.train.slice.evaluation import (
    DEVICE,
    EVALUATED,
    MODEL,
    EvaluationSlice,
    NoEvaluationError,
    evaluation_slice,
)
from migrate.train.slice.text import ScriptText
from migrate.train.watch.calls import MODULE
from migrate.train.watch.functions import (
    FIXED,
    OBJECT,
    TENSORS,
    PortedFunction,
    numbers_stay_tensors,
)
from migrate.train.watch.step import Bound, bind, without_wrapper
from migrate.train.watch.values import held_modules, leaves, plain, snapshot

# Batches of other sizes that are kept of one evaluation, evaluations that are kept, and sites.
_MOST_SIZES, _MOST_MOMENTS, _MOST_SITES = 4, 4, 6
# Relative difference up to which the statements give what the script reads.
_LIMIT = 1e-6


@dataclass
class Site:
    """Statements of the script that evaluate.

    Attributes:
        label: name of the evaluation: that of its function.
        cut: its statements.
        frame: the frame that has them.
        chains: frames from there to the module, of each different call.
        why: why it is no evaluation of a program; "" if it is one.
        inputs: data and keys of each tensor → input of the method.
        roots: names of its data.
        batches: update, inputs and values of each kept batch.
    """

    label: str
    cut: EvaluationSlice | None
    frame: Frame
    chains: list[tuple[Frame, ...]] = field(default_factory=list)
    why: str = ""
    inputs: Mapping[tuple[str, tuple[Any, ...]], str] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    batches: list[dict[str, Any]] = field(default_factory=list)
    bound: Bound | None = None
    function: Callable[..., Any] | None = None

    def recorded(self) -> dict[str, Any]:
        """The site as plain values, for the record."""
        edits = []
        if self.cut is not None:
            arguments = ", ".join([repr(self.label), *(f"{root}={root}" for root in self.roots)])
            call = f"{EVALUATED}({arguments})"
            edits = [
                (a, b, re.sub(rf"\b{EVALUATED}\b", lambda _: call, text))
                for a, b, text in self.cut.edits
            ]
        return {
            "label": self.label,
            "line": self.frame.line,
            "chains": self.chains,
            "edits": edits,
            "modules": [*self.bound.modules] if self.bound else [],
            "numbers": [value.is_number for value in self.cut.values] if self.cut else [],
            "inputs": {argument: key for key, argument in self.inputs.items()},
            "batches": self.batches,
            "why": self.why,
        }


class EvaluationWatch:
    """Follows calls of modules outside of the training step.

    Args:
        script: the script, as it is run.
        question: what the parent asks.
        folder: receives sources of the statements.
        update: gives the number of updates so far.
    """

    def __init__(
        self, script: str, question: Mapping[str, Any], folder: Path, update: Callable[[], int]
    ) -> None:
        self._file, self._question, self._folder, self._update = script, question, folder, update
        self._text = ScriptText(script, Path(script).read_text())
        self._depth = self._silent = 0
        self.runs_again = False  # statements of an evaluation, to learn their values
        self._sites: dict[tuple[str, int, int], Site] = {}
        self._read: list[float] = []  # numbers that the script read since the last batch
        self._expected: tuple[Site, list[float]] | None = None
        # Whether there are batches that no port has seen.
        self.fresh = False
        # Weights of the step now; set once it is known.
        self.state: Callable[[], dict[str, torch.Tensor]] | None = None
        self.states: dict[int, dict[str, torch.Tensor]] = {}

    def listen(self) -> None:
        """Follow all calls of modules, and numbers that are read of tensors."""
        hooks.register_module_forward_pre_hook(self._before)
        hooks.register_module_forward_hook(self._after, always_call=True)
        for name in ("item", "__float__", "__int__"):
            self._follow(name)

    def _follow(self, name: str) -> None:
        original = getattr(torch.Tensor, name)

        def read(tensor: torch.Tensor) -> Any:
            value = original(tensor)
            if self._expected is not None and not self._silent:
                self._read.append(float(value))
            return value

        setattr(torch.Tensor, name, read)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Context for runs that are none of the script's."""
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    def _before(self, module: nn.Module, _: Any) -> None:
        self._depth += 1
        if self._depth > 1 or self._silent:
            return
        if torch.is_grad_enabled() and module.training:
            return
        if not any(p.requires_grad for p in module.parameters()):
            return
        with self.silent():
            self.runs_again = True
            try:
                self._note()
            finally:
                self.runs_again = False

    def _after(self, module: nn.Module, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)

    # ------------------------------------------------------------------ the site

    def _note(self) -> None:
        frames = list(_script_frames(self._file))
        if not frames or self._in_loss(frames):
            return
        for level, (frame, _) in enumerate(frames):
            site = self._sites.get((frame.function, frame.first, frame.line))
            if site is not None and (site.cut is not None or level == len(frames) - 1):
                break
        else:
            if len(self._sites) >= _MOST_SITES:
                return
            level, site = self._cut(frames)
            frame = frames[level][0]
            self._sites[frame.function, frame.first, frame.line] = site
        chain = tuple(f for f, _ in frames[level:])
        if chain not in site.chains:
            site.chains.append(chain)
        if not site.why:
            self._keep(site, frames[level][1])

    def _in_loss(self, frames: list[tuple[Frame, Mapping[str, Any]]]) -> bool:
        return any(
            (frame.function, frame.first) == (function, first)
            and any(begin <= frame.line <= end for begin, end in spans)
            for frame, _ in frames
            for function, first, spans in self._question["losses"]
        )

    def _cut(self, frames: list[tuple[Frame, Mapping[str, Any]]]) -> tuple[int, Site]:
        """The innermost frame whose statements give values to the host, and its site."""
        why = ""
        for level, (frame, names) in enumerate(frames):
            code = self._text.code(frame.first, frame.function)
            if code is None:
                continue
            called = frames[level - 1][0].function if level else ""
            try:
                kind = functools.partial(_kind, names)
                cut = evaluation_slice(self._text, code, frame.line, kind, called)
            except NoEvaluationError as error:
                why = why or str(error)
                continue
            except Exception as error:  # what is not read is no evaluation
                why = why or f"its statements are not read ({type(error).__name__})"
                continue
            return level, Site(self._label(frame), cut, frame)
        level = len(frames) - 1
        return level, Site(self._label(frames[level][0]), None, frames[level][0], why=why)

    def _label(self, frame: Frame) -> str:
        name = frame.function if frame.function.isidentifier() else "evaluation"
        name = name if not name.startswith("__") else "evaluation"
        known = {site.label for site in self._sites.values()} | {*dir(nn.Module)}
        names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        return next(each for each in names if each not in known)

    # ------------------------------------------------------------------ its batches

    def _keep(self, site: Site, names: Mapping[str, Any]) -> None:
        self._check()
        update = self._update()
        moments = {batch["update"] for batch in site.batches}
        is_new = update not in moments
        if (
            is_new
            and moments
            and (update > self._question["updates"] or len(moments) >= _MOST_MOMENTS)
        ):
            return
        assert site.cut is not None
        values = {name: names[name] for name in site.cut.free if name in names}
        values = {**values, **{n: without_wrapper(v) for n, v in values.items()}}
        known = [n for n in site.cut.free if n in values]
        try:
            with torch.inference_mode(False), torch.no_grad(), _undone() as drawn:
                bound = bind(known, values)
                sizes = [tuple(t.shape) for v in bound.data.values() for _, t in leaves(v)]
                own = [b for b in site.batches if b["update"] == update]
                if sizes in [b["sizes"] for b in own] or len(own) >= _MOST_SIZES:
                    return
                data = {name: snapshot(value) for name, value in bound.data.items()}
                bound = bind(known, {**values, **data})
                function = self._built(site, bound, names)
                results = function(**data, **bound.modules, **bound.objects)
                self._require_mode(function, data, bound, results)
            if drawn():
                raise NoEvaluationError("it draws random numbers")
            arrays = [plain(value) for value in results]
        except NoEvaluationError as error:
            site.why = str(error)
            return
        except Exception as error:
            site.why = f"its statements, run again, fail ({type(error).__name__}: {error})"[:200]
            return
        if site.function is None:
            site.bound, site.function = bound, function
            site.inputs, site.roots = bound.inputs, tuple(bound.data)
        if bound.inputs != site.inputs:
            return
        inputs = {
            argument: plain(_leaf(data[root], path))
            for (root, path), argument in bound.inputs.items()
        }
        if update and update not in self.states and self.state is not None:
            self.states[update] = self.state()
        site.batches.append({"update": update, "sizes": sizes, "inputs": inputs, "values": arrays})
        numbers = [
            float(x) for x, value in zip(arrays, site.cut.values, strict=True) if value.is_number
        ]
        self._expected, self._read, self.fresh = (site, numbers), [], True

    def _check(self) -> None:
        """Require that the script read the numbers that its statements give."""
        if self._expected is None:
            return
        (site, numbers), read = self._expected, self._read
        self._expected = None
        for number in numbers:
            near = (abs(number - value) <= _LIMIT * max(abs(number), 1e-30) for value in read)
            if not any(near) and number == number:
                site.why = "its statements, run again, give another value than the script reads"

    def _built(
        self, site: Site, bound: Bound, names: Mapping[str, Any]
    ) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The statements as a function of data, modules and objects."""
        assert site.cut is not None
        taken = ", ".join((*bound.data, *bound.modules, *bound.objects))
        results = "".join(f"{value.expression}, " for value in site.cut.values)
        body = textwrap.indent(site.cut.text, "    ")
        source = f"def {site.label}({taken}):\n{body}\n    return ({results})\n"
        file = self._folder / f"migrate_{site.label}.py"
        file.write_text(source)
        namespace = {**names, **bound.constants}
        exec(compile(source, str(file), "exec"), namespace)
        function: Any = namespace[site.label]

        def run(**values: Any) -> tuple[torch.Tensor, ...]:
            with numbers_stay_tensors():
                results: tuple[torch.Tensor, ...] = function(**values)
            for value in results:
                if not isinstance(value, torch.Tensor) or value.ndim:
                    raise NoEvaluationError("the host reads more of a batch than numbers")
            return results

        return run

    @staticmethod
    def _require_mode(
        function: Callable[..., Any],
        data: Mapping[str, Any],
        bound: Bound,
        results: tuple[torch.Tensor, ...],
    ) -> None:
        """Require modules in evaluation mode, or results that do not depend on it."""
        modules = [*bound.modules.values()]
        modules += [m for value in bound.objects.values() for _, m in held_modules(value)]
        flags = {inner: inner.training for m in modules for inner in m.modules()}
        if not any(flags.values()):
            return
        try:
            for module in modules:
                module.eval()
            again = function(**data, **bound.modules, **bound.objects)
        finally:
            for inner, training in flags.items():
                inner.training = training
        if not all(torch.equal(a, b) for a, b in zip(results, again, strict=True)):
            raise NoEvaluationError("the model is in training mode there")

    # ------------------------------------------------------------------ what the recorder asks

    def methods(
        self, children: Mapping[str, nn.Module], objects: Mapping[str, Any], taken: set[str]
    ) -> list[PortedFunction]:
        """The evaluations as methods of a step.

        Args:
            children: modules of the step.
            objects: objects that its statements name.
            taken: names of its other methods.
        """
        self._check()
        self.fresh = False
        methods = []
        for site in self._sites.values():
            if site.why or site.bound is None or site.cut is None:
                continue
            arguments: dict[str, tuple[str, Any]] = {}
            for name, module in site.bound.modules.items():
                child = next((n for n, held in children.items() if held is module), None)
                if child is None and not {*module.parameters(), *module.buffers()}:
                    arguments[name] = (FIXED, module)  # a loss
                elif child is None:
                    site.why = f"{name} is another module than the trained one"
                else:
                    arguments[name] = (MODULE, child)
            for name, value in site.bound.objects.items():
                known = next((n for n, other in objects.items() if other is value), None)
                if known is None:
                    site.why = f"{name} is an object that the loss does not read"
                else:
                    arguments[name] = (OBJECT, known)
            if site.label in taken:
                site.why = f"{site.label} is a function of the loss, too"
            if site.why:
                continue
            arguments |= {name: (TENSORS, value) for name, value in site.bound.data.items()}
            methods.append(
                PortedFunction(site.label, site.label, 0, arguments, site.inputs, site.function)
            )
        return methods

    def refuse(self, label: str, why: str) -> None:
        """Note why an evaluation is not ported; all of them, if no label is known."""
        for site in self._sites.values():
            if label in ("", site.label) and not site.why:
                site.why = why

    def recorded(self) -> list[dict[str, Any]]:
        """All evaluations, for the record."""
        self._check()
        return [site.recorded() for site in self._sites.values()]


def _kind(names: Mapping[str, Any], node: ast.expr) -> str:
    """Kind of the function of a call, by its value."""
    value = _value(node, names)
    if isinstance(value, nn.Module):
        return MODEL if any(p.requires_grad for p in value.parameters()) else DEVICE
    module = str(getattr(value, "__module__", None) or "")
    owner = getattr(value, "__self__", None)
    if isinstance(owner, nn.Module):
        return MODEL if any(p.requires_grad for p in owner.parameters()) else ""
    if isinstance(value, type):
        return ""
    if module.partition(".")[0] == "torch" or type(value).__module__.startswith("torch"):
        return DEVICE
    if isinstance(value, types.BuiltinFunctionType):  # torch.exp, not math.exp or a list's append
        owner = owner if isinstance(owner, types.ModuleType | type) else None
        of_torch = str(getattr(owner, "__module__", None) or getattr(owner, "__name__", ""))
        return DEVICE if of_torch.partition(".")[0] == "torch" else ""
    return DEVICE if module == "__main__" and hasattr(value, "__code__") else ""


def _value(node: ast.AST, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, names), node.attr, None)
    return None


def _script_frames(file: str) -> Iterator[tuple[Frame, Mapping[str, Any]]]:
    """Yield frames of the script with their names and values, innermost first.

    Those of comprehensions are in the frame around them.
    """
    frame: FrameType | None = sys._getframe(1)
    inner: dict[str, Any] = {}
    while frame is not None:
        code = frame.f_code
        if code.co_filename == file:
            if code.co_name in COMPREHENSIONS:
                inner = {**frame.f_locals, **inner}
            else:
                values = {**frame.f_globals, **frame.f_locals, **inner}
                yield Frame(frame.f_lineno, code.co_name, code.co_firstlineno), values
                inner = {}
        frame = frame.f_back


@contextmanager
def _undone() -> Iterator[Callable[[], bool]]:
    """Put torch's generator back; gives a function that says whether numbers were drawn from it."""
    state = torch.get_rng_state()
    drawn = False
    try:
        yield lambda: drawn
    finally:
        drawn = not np.array_equal(state.numpy(), torch.get_rng_state().numpy())
        torch.set_rng_state(state)


def _leaf(value: Any, path: tuple[Any, ...]) -> torch.Tensor:
    return next(tensor for known, tensor in leaves(value) if known == path)
