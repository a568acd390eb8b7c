"""Distributions of torch that look at their parameters."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.steps.in_step import When
from migrate.reading.tree.tree import code, keyword
from migrate.reading.values.kind import Kind

PACKAGE = "torch.distributions."
# What is no distribution with parameters of its own.
OTHERS = frozenset({"Independent", "TransformedDistribution", "Distribution", "ExponentialFamily"})
MODULES = ("constraints", "constraint_registry", "kl", "transforms", "utils")
VALIDATING = frozenset({"log_prob", "cdf", "icdf"})
OFF = "pass validate_args=False, or call torch.distributions.Distribution.set_default_validate_args(False)"


class ValidatedDistribution(Hazard):
    """A distribution of torch checks the values of its parameters in the step.

    **Why.** `torch.distributions` validates by default: making `Normal(mean, std)` asks whether each
    parameter is in its range, and `log_prob(x)` whether `x` is. On XLA each question is a read of the
    device: the graph is cut, and the host waits. On a GPU it waits as well, but for one small kernel.

    **What to do.** `validate_args=False`, or once at the start of the program
    `torch.distributions.Distribution.set_default_validate_args(False)`. A parameter out of range then gives
    NaN, and no exception.

    Source: torch 2.9, torch_xla 2.9 (measured, reads of the device: `Normal(mean, std)` two,
    `Categorical(logits=…)` one, `MultivariateNormal` seven, `log_prob` one more; none without validation).
    """

    code = "XLA211"
    name = "validated-distribution"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch
            from torch.distributions import Normal


            def noise_level(count, device):
                alpha = torch.as_tensor(1.5, device=device)
                beta = torch.as_tensor(1.0, device=device)
                return torch.distributions.Beta(alpha, beta).sample((count,))  # XLA211


            class Policy(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.mean = torch.nn.Linear(8, 8)
                    self.prior = Normal(0.0, 1.0)

                def forward(self, x):
                    mean = self.mean(x)
                    policy = Normal(mean, torch.ones_like(mean))  # XLA211
                    action = policy.rsample()
                    return policy.log_prob(action) + self.prior.log_prob(action)  # XLA211


            def train(model, loader, optimizer):
                for x in loader:
                    x = x.cuda()
                    loss = (model(x) * noise_level(len(x), x.device)).mean()
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch
            from torch.distributions import Categorical, Independent, Normal, kl_divergence


            class Policy(torch.nn.Module):
                def forward(self, x, old):
                    policy = Independent(Normal(x, 1.0, validate_args=False), 1)
                    return kl_divergence(old, policy).mean()


            def choose(weights):
                return Categorical(torch.tensor(weights)).sample().item()


            def share():
                return torch.distributions.Beta(1.0, 1.0).sample().item()
            """
        ),
        example(
            """
            import torch
            from torch.distributions import Distribution, Normal

            Distribution.set_default_validate_args(False)


            class Policy(torch.nn.Module):
                def forward(self, x):
                    return Normal(x, 1.0).rsample()
            """
        ),
    )
    mended = example(
        """
        import torch
        from torch.distributions import Normal


        class Policy(torch.nn.Module):
            def forward(self, x):
                return Normal(x, torch.ones_like(x), validate_args=False).rsample()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one distribution, or one question about a value."""
        assert isinstance(node, cst.Call)
        if facts.context.calls.unvalidated:
            return
        when = facts.steps.when(node)
        if when not in (When.STEP, When.EVERY_STEP):
            return
        severity = None if when is When.STEP else Severity.INFO
        if is_distribution(node, facts):
            if any(_is_tensor(arg.value, facts) for arg in node.args):
                message = (
                    f"`{code(node.func)}` checks its parameters' values: each check reads the device, and so "
                    f"does each log_prob; {OFF}"
                )
                yield self.hit(node, message, severity)
        elif method(node) in VALIDATING and node.args and not facts.names.of(node.func):
            made = [one for one in _made(receiver(node), facts) if is_distribution(one, facts)]
            ours = [one for one in made if isinstance(one, cst.Call)]
            reported = any(_is_tensor(arg.value, facts) for one in ours for arg in one.args)
            if ours and not reported and _is_tensor(node.args[0].value, facts):
                message = (
                    f"`{code(node.func)}` checks the value it is given: a read of the device; {OFF}"
                )
                yield self.hit(node, message, severity)


def is_distribution(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` makes a distribution of torch that checks its parameters."""
    if not isinstance(node, cst.Call):
        return False
    name = facts.names.of(node.func) or ""
    package, _, last = name.removeprefix(PACKAGE).rpartition(".")
    if not name.startswith(PACKAGE) or not last[:1].isupper() or last in OTHERS:
        return False
    validates = keyword(node, "validate_args")
    return package not in MODULES and (validates is None or code(validates.value) != "False")


def _is_tensor(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is on the device; in a step also what is a tensor, or not known to be of the host."""
    if facts.values.on_device(value):
        return True
    if not facts.steps.inside(value):
        return False
    kind = facts.values.kind(value)
    number = isinstance(value, cst.BaseNumber | cst.UnaryOperation)
    return kind is Kind.TENSOR or (kind is Kind.UNKNOWN and not number)


def _made(value: cst.BaseExpression, facts: Facts) -> list[cst.BaseExpression]:
    """Return what makes the distribution `value`."""
    if isinstance(value, cst.Name):
        given = [one.value for one in facts.bindings.reaching(value)]
        return [one for one in given if one is not None]
    return facts.values.given_to(value) if isinstance(value, cst.Attribute) else [value]
