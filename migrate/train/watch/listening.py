"""Calls of torch that train: backward, clipping, steps of optimizers and schedules, zeroing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from migrate.prove.record import listen
from migrate.train.watch.seeds import seed_torch
from shims import activate

# What a call is, by the function that makes it.
BACKWARD, CLIP, STEP, SCHEDULE, ZERO = "backward", "clip", "step", "schedule", "zero_grad"
SCALE = "scale"


def as_compared() -> None:
    """Let the script run as it is compared: seeded, in one process, without dropout and mixed precision."""
    seed_torch()
    without_compilation()
    without_scaling()
    without_spawning()
    listen.without_autocast()
    listen.without_dropout()


def without_compilation() -> None:
    """Make `torch.compile` return what it is given: the program is compiled by XLA anyway."""
    import torch

    def unchanged(model: Any = None, **options: Any) -> Any:
        return (lambda function: function) if model is None else model

    torch.compile = unchanged


def without_spawning() -> None:
    """Let `torch.multiprocessing.spawn` of one process call its function here, where it is watched."""
    import sys

    import torch.multiprocessing

    original = torch.multiprocessing.spawn

    @functools.wraps(original)
    def spawn(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        *more: Any,
        **options: Any,
    ) -> Any:
        return fn(0, *args) if nprocs == 1 else original(fn, args, nprocs, *more, **options)

    for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        setattr(module, "spawn", spawn)  # noqa: B010


def without_scaling() -> None:
    """Switch loss scalers off: a float32 program has none, and scaled gradients are not the loss's."""
    import torch

    create = torch.amp.GradScaler.__init__

    def created(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        self._enabled = False

    setattr(torch.amp.GradScaler, "__init__", functools.wraps(create)(created))  # noqa: B010


def to_scaling(tell: Callable[[], None]) -> None:
    """Call `tell()` before a loss scaler divides gradients, or sets its factor."""
    import torch

    for name in ("unscale_", "update"):
        original = getattr(torch.amp.GradScaler, name)

        def scaled(self: Any, *args: Any, _scale: Any = original, **kwargs: Any) -> Any:
            tell()
            return _scale(self, *args, **kwargs)

        setattr(torch.amp.GradScaler, name, functools.wraps(original)(scaled))


def to_backward(tell: Callable[[Any, Callable[..., None]], None]) -> None:
    """Call `tell(loss, run)` in place of each outermost backward.

    `run()` runs the backward; `run(share)` that of the loss times a factor, and nothing for a factor of zero.
    """
    import torch

    original = torch.autograd.backward
    depth = 0

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal depth
        depth += 1
        try:
            if depth > 1:
                original(tensors, *args, **kwargs)
            else:

                def run(share: float = 1.0) -> None:
                    if share:
                        original(tensors if share == 1 else tensors * share, *args, **kwargs)

                tell(tensors, run)
        finally:
            depth -= 1

    torch.autograd.backward = backward


def to_clipping(
    tell: Callable[[str, Any, tuple[Any, ...], dict[str, Any]], None],
    before: Callable[[], None] = lambda: None,
) -> None:
    """Call `before()` and `tell(name, result, args, kwargs)` around each clipping of gradients."""
    _to_clipping(tell, before)
    # torch_xla, which accelerate imports, puts its own clip_grad_norm_ in torch's place.
    activate.after_import("torch_xla", lambda: _to_clipping(tell, before))


def _to_clipping(
    tell: Callable[[str, Any, tuple[Any, ...], dict[str, Any]], None], before: Callable[[], None]
) -> None:
    import torch

    for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            original = getattr(owner, name)
            if getattr(original, "_tells_train", False):
                continue

            def clipped(
                parameters: Any,
                *args: Any,
                _clip: Callable[..., Any] = original,
                _name: str = name,
                **kwargs: Any,
            ) -> Any:
                if not isinstance(parameters, torch.Tensor):
                    parameters = list(parameters)  # model.parameters() can be read once
                before()
                result = _clip(parameters, *args, **kwargs)
                args = (parameters, *args)
                tell(_name, result, args, kwargs)
                return result

            wrapped: Any = functools.wraps(original)(clipped)
            wrapped._tells_train = True
            setattr(owner, name, wrapped)


def to_steps(before: Callable[[Any], None], after: Callable[[Any], None]) -> None:
    """Call `before(optimizer)` and `after(optimizer)` around each step of an optimizer."""
    from torch.optim import optimizer as optimizers

    optimizers.register_optimizer_step_pre_hook(lambda optimizer, *_: before(optimizer))
    optimizers.register_optimizer_step_post_hook(lambda optimizer, *_: after(optimizer))


def to_zeroing(tell: Callable[[], None]) -> None:
    """Call `tell()` before gradients are set to zero."""
    import torch

    for owner in (torch.optim.Optimizer, torch.nn.Module):
        original = owner.zero_grad

        def zeroed(
            self: Any, *args: Any, _zero: Callable[..., Any] = original, **kwargs: Any
        ) -> Any:
            tell()
            return _zero(self, *args, **kwargs)

        setattr(owner, "zero_grad", functools.wraps(original)(zeroed))  # noqa: B010


def to_schedules(built: Callable[[Any], None], tell: Callable[[Any], None]) -> None:
    """Call `built(scheduler)` for each new schedule, and `tell(scheduler)` before each of its steps.

    Steps that a schedule makes of itself or of others within it are not reported.
    """
    import torch
    from torch.optim import lr_scheduler

    depth = 0

    def wrapped(original: Callable[..., Any], report: Callable[[Any], None], *, after: bool) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if depth == 0 and not after:
                report(self)
            depth += 1
            try:
                result = original(self, *args, **kwargs)
            finally:
                depth -= 1
            if depth == 0 and after:
                report(self)
            return result

        return functools.wraps(original)(call)

    for cls in list(vars(lr_scheduler).values()):
        if not isinstance(cls, type) or issubclass(cls, torch.optim.Optimizer):
            continue
        if not hasattr(cls, "step"):
            continue
        for name, report, after in (("__init__", built, True), ("step", tell, False)):
            if name in vars(cls):
                setattr(cls, name, wrapped(vars(cls)[name], report, after=after))


def to_optimizers(built: Callable[[Any], None]) -> None:
    """Call `built(optimizer)` for each new optimizer."""
    import torch

    create = torch.optim.Optimizer.__init__

    def created(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        built(self)

    torch.optim.Optimizer.__init__ = functools.wraps(create)(created)


def to_autocast(tell: Callable[[Any], None]) -> None:
    """Call `tell(autocast)` for each autocast that is built and enabled."""
    import torch

    create = torch.amp.autocast_mode.autocast.__init__

    def created(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        if self._enabled:
            tell(self)

    torch.amp.autocast_mode.autocast.__init__ = functools.wraps(create)(created)


@contextmanager
def autocast_without_effect() -> Iterator[None]:
    """Make entering an autocast do nothing for a while, so that a recording has no region of it."""
    import torch

    context: Any = torch.amp.autocast_mode.autocast
    kept = context.__enter__, context.__exit__
    context.__enter__ = lambda self: self
    context.__exit__ = lambda self, *error: None
    try:
        yield
    finally:
        context.__enter__, context.__exit__ = kept


@contextmanager
def wrappers_as_modules() -> Iterator[None]:
    """Make wrappers for several ranks or devices call their module alone for a while, as one process does."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    wrappers: tuple[Any, ...] = (DataParallel, DistributedDataParallel)
    kept = [(wrapper, wrapper.forward) for wrapper in wrappers]
    for wrapper in wrappers:
        wrapper.forward = lambda self, *args, **kwargs: self.module(*args, **kwargs)
    try:
        yield
    finally:
        for wrapper, forward in kept:
            wrapper.forward = forward
