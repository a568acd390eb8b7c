"""Random numbers of the device, or a kept tensor, in a loop that reads, and in which no step ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from migrate.catalogue.drawing import MAKERS, SAMPLERS
from migrate.catalogue.words import READ_METHODS, STEPS
from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.draws import FILLS, LIKES
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.flow.reads import DeviceReads
from migrate.reading.steps.in_step import When
from migrate.reading.steps.loops import has_sync
from migrate.reading.steps.pending_state import growing_names
from migrate.reading.steps.unended import computed_in, is_sampling
from migrate.reading.values.devices import is_accelerator
from migrate.syntax.tree import code, keyword, nodes_of, string_value

LIBRARIES = ("torch_xla", "shims")
SEEDS = frozenset(
    {"torch_xla.manual_seed", "torch_xla.core.xla_model.set_rng_state", "shims.manual_seed"}
)


class UnendedDraws(Hazard):
    """A loop draws on the device, or computes a tensor from its own last value, and reads, but no step ends.

    **Why.** Until a step ends, each draw makes its seed from the seed before it, in the graph. A tensor that
    an object keeps from call to call (a planner's mean, a hidden state) is pending in the same way. A read
    (`.cpu()`, `.item()`) runs the graph of one value and ends no step, so that the next turn begins with a
    longer graph: every turn compiles again. Functions of other files that the loop calls count.

    **What to do.** End a step in each turn: `torch_xla.sync()` below the read, or
    `with torch_xla.step():` around what the turn computes.

    Source: torch_xla 2.9 (measured: six turns with `torch.randn_like` and `.cpu()` compile six times, with
    `torch_xla.sync()` at their end twice; six calls of a method that keeps a tensor compile six times).
    """

    code = "XLA115"
    name = "unended-draws"
    severity = Severity.WARNING
    nodes = (cst.For, cst.While)
    words = "|".join((*LIBRARIES, "no_grad", "inference_mode"))
    of_facts = ("growing",)
    examples = (
        example(
            """
            import torch
            import torch_xla


            def draw(p):
                return torch.multinomial(p.flatten(0, -2), 1).view(*p.shape[:-1])


            @torch.no_grad()
            def sample(model, x, count):
                x = x.to("xla")
                for i in range(count):  # XLA115
                    new = draw(torch.softmax(model(x), -1))
                    jumps = torch.rand(x.shape, device=x.device) < 0.5
                    if jumps.sum() > 0:
                        x = torch.where(jumps, new, x)
                return x
            """
        ),
        example(
            """
            import torch
            import torch_xla


            @torch.no_grad()
            def main(model, count, save):
                for i in range(count):  # XLA115
                    z = torch.randn(8, 4, device="xla")
                    save(model(z).cpu())


            @torch.no_grad()
            def embed(loader, out):
                for x in loader:  # XLA115
                    x = x.to("xla")
                    out.append(disturb(x).cpu())


            def disturb(x):
                noise = torch.randn_like(x.to("xla"))
                return x + noise
            """
        ),
        example(
            """
            import torch
            import torch_xla


            class Agent(torch.nn.Module):
                def __init__(self, net):
                    super().__init__()
                    self.net = net
                    self.mean = torch.zeros(4, 8, device="xla")

                @torch.no_grad()
                def forward(self, x):
                    out = self.net(x.to("xla") + self.mean)
                    self.mean = out.clone()
                    return out.sum(1).cpu()


            def play(env, net):
                agent = Agent(net)
                x = env.reset()
                for _ in range(100):  # XLA115
                    x = env.step(agent(x))


            @torch.no_grad()
            def write(model, token, hidden, count, out):
                token = token.to("xla")
                for _ in range(count):  # XLA115
                    scores, hidden = model(token, hidden)
                    token = scores.argmax(-1)
                    out.append(token.tolist())
            """
        ),
        example(
            """
            import torch
            import torch_xla


            @torch.no_grad()
            def denoise(model, x, count, frames):
                x = x.to("xla")
                for i in range(count):
                    x = x - model(x, i)
                    frames.append(x.cpu())


            @torch.no_grad()
            def play(model, env, count):
                x = env.reset()
                for _ in range(count):
                    action = model(x.to("xla")).cpu()
                    x = env.step(action)
            """
        ),
        example(
            """
            import torch
            import torch_xla


            @torch.no_grad()
            def main(model, count, save):
                for i in range(count):
                    z = torch.randn(8, 4)
                    save(model(z.to("xla")).cpu())
                for i in range(count):
                    torch_xla.manual_seed(i)
                    z = torch.randn(8, 4, device="xla")
                    save(model(z).cpu())
                x = torch.zeros(8, 4, device="xla")
                for i in range(count):
                    x = model(x) + torch.randn_like(x)
                save(x.cpu())
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch_xla


        @torch.no_grad()
        def main(model, count, save):
            for i in range(count):
                z = torch.randn(8, 4, device="xla")
                save(model(z).cpu())
                torch_xla.sync()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the innermost loop that leaves more work pending in each turn, and reads."""
        assert isinstance(node, cst.For | cst.While)
        context = facts.context
        growing = context.calls.growing
        named = growing or any(context.references(library) for library in LIBRARIES)
        if not named and not (context.calls.run_on_accelerator and is_sampling(node, facts)):
            return  # what is not yet for XLA gets its steps first
        if context.effects.is_step_loop(node) or facts.steps.when(node) is not When.ELSEWHERE:
            return
        if any(context.effects.has_steps(call) for call in _own(node)):
            return  # a function trains in it, of another file perhaps: its steps end
        calls = list(_calls(node, facts))
        if has_sync(node, context) or any(facts.names.of(c.func) in STEPS | SEEDS for c in calls):
            return
        inner: tuple[cst.For | cst.While, ...]
        inner = (*nodes_of(node.body, cst.For), *nodes_of(node.body, cst.While))
        cause, read = _found(node, facts)
        if not read or any(_found(loop, facts)[1] for loop in inner):
            return
        message = (
            f"{cause} in each turn, {read} reads, and no step "
            "ends: each turn compiles again; torch_xla.sync() at the end of the turn"
        )
        yield self.hit(node, message)


def _found(loop: cst.For | cst.While, facts: Facts) -> tuple[str, str]:
    """Return by what the pending work grows, and what reads a value in each turn; empty for nothing."""
    kept = growing_names(loop, facts)
    cause = _cause(loop, kept, facts)
    return cause, _read(loop, kept, facts) if cause else ""


def _cause(loop: cst.For | cst.While, kept: Sequence[str], facts: Facts) -> str:
    """Return by what the pending work grows from turn to turn; empty for nothing."""
    draw = next((call for call in _calls(loop, facts) if _draws(call, facts)), None)
    if draw is not None:
        return f"`{code(draw.func)}` draws on the device"
    context = facts.context
    places = (context.place(call) for call in _own(loop))
    called = next(
        (context.calls.growing[p].cause for p in places if p in context.calls.growing), ""
    )
    return called or next((f"`{name}` is computed from its own last value" for name in kept), "")


def _read(loop: cst.For | cst.While, kept: Sequence[str], facts: Facts) -> str:
    """Return what reads a value in each turn; empty for nothing."""
    growing = facts.context.calls.growing
    for call in _own(loop):
        if _reads(call, facts):
            return f"`.{method(call)}()`"
        place = facts.context.place(call)
        if place in growing and growing[place].reads:
            return f"`{code(call.func)}`"
    if not kept:
        return ""
    reads = DeviceReads(computed_in(loop, facts), facts.context).inside(loop.body)
    return next((f"`{code(read)}`" for read in reads), "")


def _own(loop: cst.For | cst.While) -> Iterator[cst.Call]:
    yield from nodes_of(loop.body, cst.Call)


def _calls(loop: cst.For | cst.While, facts: Facts) -> Iterator[cst.Call]:
    """Yield the calls of the loop, and of the functions of the script that it calls."""
    seen: set[int] = set()
    for call in _own(loop):
        yield call
        for function in facts.context.called(call):
            if id(function) not in seen:
                seen.add(id(function))
                yield from nodes_of(function.body, cst.Call)


def _draws(call: cst.Call, facts: Facts) -> bool:
    name = facts.names.of(call.func) or ""
    if name.startswith("torch.") and name[6:] in MAKERS:
        device = keyword(call, "device")
        return device is not None and is_accelerator(device.value, facts.context)
    if name.startswith("torch.") and name[6:] in LIKES | SAMPLERS:
        return bool(call.args) and facts.values.on_device(call.args[0].value)
    drawing = method(call) in FILLS | SAMPLERS | {"sample"}
    if method(call) == "sample" and code(call.func).endswith(".latent_dist.sample"):
        return True  # of diffusers' autoencoders: on the device of the moments
    return not name and drawing and facts.values.on_device(receiver(call))


def _reads(call: cst.Call, facts: Facts) -> bool:
    if not isinstance(call.func, cst.Attribute) or facts.names.of(call.func):
        return False
    name = method(call)
    goes = name == "to" and bool(call.args) and string_value(call.args[0].value) == "cpu"
    if name not in READ_METHODS and not goes:
        return False
    return facts.values.kind(receiver(call)) not in (Kind.HOST, Kind.CPU)
