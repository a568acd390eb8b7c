"""Generators on the device."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.steps.in_step import When
from migrate.reading.values.devices import (
    is_accelerator,
    makes_generator,
)
from migrate.reading.values.host import is_on_the_cpu
from migrate.syntax.tree import code, is_none, keyword, last_part

# Methods that a construction is followed by: they return the generator.
CHAINED = frozenset({"manual_seed"})
DEEPEST = 4
GENERATOR = "Generator"
# Fills of a tensor of XLA that take no generator: any raises an AssertionError without a text.
WITHOUT_GENERATOR = frozenset({"cauchy_", "exponential_", "geometric_", "log_normal_"})
OF_CUDA = frozenset({"graphsafe_get_state", "graphsafe_set_state"})


class GeneratorHazard(Hazard):
    """A generator of random numbers on the device raises.

    **Why.** XLA has one state of random numbers for each device and no generators. Only those of CUDA have
    `graphsafe_get_state` and `graphsafe_set_state`. A generator of the CPU that is given to a draw on the
    device is drawn from on the host: the values are right, but the graph ends there, and the tensor is copied
    to the host and back at every draw. `exponential_`, `cauchy_`, `geometric_` and `log_normal_` of a tensor
    on the device take no generator at all: they raise an AssertionError without a text.

    **What to do.** A generator of the CPU for data and masks, drawn from on the host and moved to the device:
    `torch.randn(4, generator=generator).to("xla")`; `torch_xla.manual_seed` for the rest. `get_state` and
    `set_state` instead of the two: the former returns a copy. For the four fills: a tensor of the CPU, moved
    afterwards, `torch.empty(4).exponential_(generator=generator).to("xla")`.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA814"
    name = "generator"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = r"[Gg]enerator|graphsafe_|\bdevice\s*=(?!=)|cuda"  # a class of the project may have any name
    examples = (
        example(
            """
            import torch


            def validate(trainer, before):
                now = trainer.rng.graphsafe_get_state()  # XLA814
                trainer.rng.graphsafe_set_state(before)  # XLA814
                return now
            """
        ),
        example(
            """
            import torch

            generator = torch.Generator().manual_seed(0)
            other = torch.Generator(device="cpu")
            """
        ),
        example(
            """
            import torch


            def train(model, optimizer, loader):
                generator = torch.Generator().manual_seed(0)
                start = torch.randn(4, device="xla", generator=generator)
                for x in loader:
                    x = x.to("xla")
                    noise = torch.randn(x.shape, device="xla", generator=generator)  # XLA814 warning
                    mask = torch.empty(4, device="xla").uniform_(generator=generator)  # XLA814 warning
                    order = torch.randperm(4, generator=generator).to("xla")
                    free = torch.randn(x.shape, device="xla", generator=None)
                    loss = model(x + noise * mask + start + free)[order].mean()
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch

            logits = torch.zeros(2, 3, device="xla")
            generator = torch.Generator().manual_seed(0)
            gumbel = -torch.empty_like(logits).exponential_(generator=generator).log()  # XLA814
            plain = -torch.empty_like(logits).exponential_().log()
            host = torch.empty(2, 3).exponential_(generator=generator).to("xla")
            copied = logits.cpu().geometric_(0.5, generator=generator)
            uniform = torch.empty_like(logits).uniform_(generator=generator)


            def noise(like, generator=None):
                return torch.empty_like(like).log_normal_(generator=generator)  # XLA814 warning
            """
        ),
        example(
            """
            from typing import Optional

            import torch
            import torch_xla


            class Runner:
                def __init__(self, model):
                    self.model = model
                    self.rng = torch.Generator()

                def loss(self, mean: torch.Tensor, std: torch.Tensor):
                    noise = torch.empty_like(mean).normal_(generator=self.rng)  # XLA814 warning
                    x = mean + std * noise
                    kept = torch.rand(len(x), device=x.device, generator=self.rng)  # XLA814 warning
                    return self.model(x, kept, shifted(x, self.rng), still(x, None))


            def shifted(x, generator: Optional[torch.Generator] = None):
                return x + torch.randn(x.shape, device=x.device, generator=generator)  # XLA814 warning


            def still(x, generator: Optional[torch.Generator] = None):
                return x + torch.randn(x.shape, device=x.device, generator=generator)


            def train(model, loader, optimizer):
                runner = Runner(model)
                for mean, std in loader:
                    mean, std = mean.to("xla"), std.to("xla")
                    with torch_xla.step():
                        runner.loss(mean, std).mean().backward()
                        optimizer.step()
            """
        ),
    )
    mended = example(
        """
        import torch

        generator = torch.Generator()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one draw, fill or state."""
        assert isinstance(node, cst.Call)
        called = last_part(node.func)
        if called in OF_CUDA:
            plain = called.removeprefix("graphsafe_")
            yield self.hit(
                node, f"{called} raises for a generator of the CPU: {plain}, which copies"
            )
            return
        if called in WITHOUT_GENERATOR:
            yield from self._fill(node, called, facts)
            return
        if not makes_generator(node, facts.context):
            yield from self._draw(node, facts)

    def _fill(self, call: cst.Call, called: str, facts: Facts) -> Iterable[Hit]:
        """Yield a fill that XLA does not make with a generator, of a tensor that may be on the device."""
        generator = keyword(call, "generator")
        filled = call.func.value if isinstance(call.func, cst.Attribute) else None
        if generator is None or filled is None or is_none(generator.value):
            return
        if is_on_the_cpu(filled, facts.context) or facts.values.kind(filled) is Kind.HOST:
            return
        on_device = facts.values.on_device(filled)
        if not on_device and not facts.context.calls.accelerated:
            return
        where = (
            "of a tensor on the device" if on_device else "of a tensor, where it is on the device,"
        )
        yield self.hit(
            call,
            f"{called} {where} raises with a generator: draw on the CPU, "
            f"`torch.empty(shape).{called}(generator=generator)`, and move the result",
            None if on_device else Severity.WARNING,
        )

    def _draw(self, call: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield a draw on the device, in a step, from a generator of the host."""
        generator = keyword(call, "generator")
        if generator is None or facts.steps.when(call) not in (When.STEP, When.EVERY_STEP):
            return
        device = keyword(call, "device")
        if device is not None:
            on_device = facts.values.on_device(call) or is_accelerator(device.value, facts.context)
        else:
            filled = call.func.value if isinstance(call.func, cst.Attribute) else None
            parts = [arg.value for arg in call.args if arg is not generator]
            on_device = any(facts.values.on_device(p) for p in (filled, *parts) if p is not None)
        if on_device and _is_generator(generator.value, facts):
            yield self.hit(
                call,
                "drawn on the host, as the generator is there: the graph ends here, and the tensor is copied "
                "at every draw; draw without a device and move the result",
                Severity.WARNING,
            )


def _is_generator(node: cst.BaseExpression, facts: Facts, depth: int = DEEPEST) -> bool:
    """Whether `node` is a generator of torch that is made there, or a name or an attribute for one.

    A parameter is one where a call passes one, and where its type says so: another file's calls do.
    """
    while isinstance(node, cst.Call):
        if makes_generator(node, facts.context):
            return True
        if not isinstance(node.func, cst.Attribute) or node.func.attr.value not in CHAINED:
            return False
        node = node.func.value
    if not isinstance(node, cst.Name | cst.Attribute):
        return False
    values = facts.values.given_to(node)
    parameter = facts.bindings.parameter(node) if isinstance(node, cst.Name) else None
    if parameter is not None and depth:
        function, declared = parameter
        passed = [*facts.bindings.passed(function, declared.name.value)]
        if any(_is_generator(value, facts, depth - 1) for value in passed):
            return True
        annotation = declared.annotation
        named = annotation is not None and GENERATOR in code(annotation.annotation)
        return named and not (passed and all(map(is_none, passed)))
    return any(isinstance(value, cst.Call) and _is_generator(value, facts) for value in values)
