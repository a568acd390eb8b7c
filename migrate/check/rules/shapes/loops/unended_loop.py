"""A loop of a sampler or an evaluation whose turns all go in one graph."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.words import SOLVERS, STEPS
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.manual_work import ManualWork
from migrate.reading.facts import Facts
from migrate.reading.steps.unended import is_on_accelerator, unended_call, unended_element
from migrate.syntax.tree import code, nodes_of


class UnendedLoop(Hazard):
    """A loop runs a model in every turn, and nothing ends the graph.

    **Why.** XLA records operations until a value is read or the graph is ended. A sampling loop of fifty
    denoising steps becomes one graph with fifty copies of the model: it takes minutes to compile, needs the
    memory of all turns, and another number of turns is another graph.

    **What to do.** `torch_xla.sync()` as the last statement of the loop: each turn is then one
    graph, compiled once. In a script that `shims` runs, `with shims.step():` around its body.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA116"
    name = "unended-loop"
    severity = Severity.WARNING
    nodes = (
        *(cst.For, cst.While, cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp),
        cst.Call,
    )
    other_work = ManualWork.STEP
    examples = (
        example(
            """
            import torch


            @torch.no_grad()
            def sample(model, noise, steps):
                x = noise.cuda()
                for step in range(steps):  # XLA116
                    t = torch.full((len(x),), step / steps, device=x.device)
                    x = x + model(x, t) / steps
                return x.cpu()
            """
        ),
        example(
            """
            import torch
            import torch_xla
            from torchdiffeq import odeint


            @torch.no_grad()
            def sample(model, noise, times):
                x = noise.cuda()

                def velocity(t, x):
                    return model(x, t)

                def ended(t, x):
                    out = model(x, t)
                    torch_xla.sync()
                    return out

                first = odeint(velocity, x, times, method="midpoint")  # XLA116
                return first, odeint(ended, x, times, method="midpoint")
            """
        ),
        example(
            """
            import torch


            class Flow(torch.nn.Module):
                def forward(self, x, t):
                    return self.net(x, t)

                def denoise(self, x, t):
                    return x - self.forward(x, t)

                @torch.inference_mode()
                def generate(self, x, times):
                    x = x.cuda()
                    for t in times:  # XLA116
                        x = self.denoise(x, t)
                    return x
            """
        ),
        example(
            """
            import torch

            @torch.no_grad()
            def score(model, loader):
                model.cuda()
                kept = [model(x.cuda()) for x in loader]  # XLA116
                read = [model(x.cuda()).cpu() for x in loader]
                layers = [layer(kept[0]) for layer in model.layers]
                return sum(model(x.cuda()).mean().item() for x in loader), kept, read, layers
            """
        ),
        example(
            """
            import torch


            @torch.no_grad()
            def sample(model, decoder, x, steps):
                x = x.cuda()
                for scale in range(3):
                    x = model(x, scale)
                for step in range(steps):
                    x = x + model(x, step)
                    print(x.mean().item())
                for block in decoder.blocks:
                    x = block(x)
                return x


            def unrolled(model, x, target, optimizer, steps):
                for step in range(steps):
                    x = model(x)
                loss = (x - target).pow(2).mean()
                loss.backward()
                optimizer.step()
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch_xla


        @torch.no_grad()
        def sample(model, noise, steps):
            x = noise.to("xla")
            for step in range(steps):
                t = torch.full((len(x),), step / steps, device=x.device)
                x = x + model(x, t) / steps
                torch_xla.sync()
            return x.cpu()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the loop, if its turns are one graph."""
        if isinstance(node, cst.Call):
            yield from self._solver(node, facts)
            return
        if not isinstance(node, cst.For | cst.While):
            yield from self._comprehension(node, facts)
            return
        call = unended_call(node, facts)
        if call is None:
            return
        end = (
            "put `with shims.step():` around the body of the loop"
            if facts.context.portable
            else "call torch_xla.sync() at the end of each iteration"
        )
        where = node.iter if isinstance(node, cst.For) else node.test
        message = (
            f"`{code(call.func)}` runs in every iteration, and nothing ends the graph: all iterations become "
            f"one graph, which takes minutes to compile; {end}"
        )
        yield self.hit(where, message)

    def _solver(self, node: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield the call of a solver, whose own loop runs the function that it is given."""
        name = facts.names.of(node.func) or ""
        if name not in SOLVERS or not node.args:
            return
        if not is_on_accelerator(facts) and not facts.context.calls.replicated:
            return
        function = node.args[0].value
        run = facts.context.bindings(function) if isinstance(function, cst.Name) else ()
        if any(
            facts.names.of(call.func) in STEPS
            for binding in run
            if isinstance(binding.node, cst.FunctionDef)
            for call in nodes_of(binding.node.body, cst.Call)
        ):
            return
        end = "`with shims.step():`" if facts.context.portable else "torch_xla.sync()"
        message = (
            f"{name.rpartition('.')[2]} runs `{code(function)}` at every step of its own loop, and nothing "
            f"ends the graph: all are one, which takes minutes to compile; put {end} into that function"
        )
        yield self.hit(node, message)

    def _comprehension(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the comprehension, if its elements are one graph."""
        assert isinstance(node, cst.ListComp | cst.SetComp | cst.DictComp | cst.GeneratorExp)
        call = unended_element(node, facts)
        if call is not None:
            message = (
                f"`{code(call.func)}` runs for every element and nothing ends the graph: all are one, which "
                "takes minutes to compile; make it a loop with a step"
            )
            yield self.hit(call, message)
