"""Functions of libraries that check the values of their arguments: distributions, normalization."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.steps.in_step import When
from migrate.syntax.tree import code, keyword

PACKAGE = "torch.distributions."
# Classes that are not distributions with their own parameters.
OTHERS = frozenset({"Independent", "TransformedDistribution", "Distribution", "ExponentialFamily"})
MODULES = ("constraints", "constraint_registry", "kl", "transforms", "utils")
# Transforms that check that no standard deviation is zero. Those of torchvision v2 and kornia do not.
NORMALIZES = frozenset(
    {
        "torchvision.transforms.Normalize",
        "torchvision.transforms.transforms.Normalize",
    }
)
HOLDS_TRANSFORMS = frozenset(
    {
        "torch.nn.Sequential",
        "torchvision.transforms.Compose",
        "torchvision.transforms.transforms.Compose",
    }
)
CHECKS = {
    "torchvision.transforms.functional.normalize": "asks whether `std` holds a zero",
    "torch.nn.functional.gaussian_nll_loss": "asks whether `var` is negative",
}
INSTEAD = {
    "torchvision.transforms.functional.normalize": "`(x - mean) / std` with buffers, or transforms.v2",
    "torch.nn.functional.gaussian_nll_loss": "write the loss: `0.5 * (var.log() + (x - y) ** 2 / var)`",
}
# Distributions whose divergence asks by masks where a probability is zero, or a range too small.
MASKED = frozenset(
    {
        "Bernoulli",
        "Binomial",
        "Categorical",
        "OneHotCategorical",
        "OneHotCategoricalStraightThrough",
    }
    | {"Uniform"}
)
DIVERGENCES = frozenset(
    {"torch.distributions.kl_divergence", "torch.distributions.kl.kl_divergence"}
)
VALIDATING = frozenset({"log_prob", "cdf", "icdf"})
OFF = "pass validate_args=False, or call torch.distributions.Distribution.set_default_validate_args(False)"


class ValidatedDistribution(Hazard):
    """A distribution of torch checks the values of its parameters in the step.

    **Why.** `torch.distributions` validates by default: making `Normal(mean, std)` asks whether each
    parameter is in its range, and `log_prob(x)` whether `x` is. On XLA each question is a read of the
    device: the graph is cut, and the host waits. On a GPU it waits as well, but for one small kernel.
    `torchvision.transforms.Normalize` of a tensor on the device asks at each call whether `std` holds a zero,
    and `gaussian_nll_loss` whether a variance is negative. `kl_divergence` of two `Categorical`, `Bernoulli`,
    `Binomial` or `Uniform` sets values by masks, and each mask is a read.

    **What to do.** `validate_args=False`, or once at the start of the program
    `torch.distributions.Distribution.set_default_validate_args(False)`. A parameter out of range then gives
    NaN, and no exception. Instead of `Normalize`: the one of `torchvision.transforms.v2`, or
    `(x - mean) / std` with `mean` and `std` as buffers.

    Source: torch 2.9, torch_xla 2.9 (measured, reads of the device: `Normal(mean, std)` two,
    `Categorical(logits=…)` one, `MultivariateNormal` seven, `log_prob` one more; none without validation;
    `kl_divergence` of two `Categorical` two, of two `Bernoulli` four, of two `Normal` none);
    torchvision 0.24, `transforms/_functional_tensor.py`.
    """

    code = "XLA211"
    name = "validated-distribution"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    words = "distributions|[nN]ormalize|gaussian_nll_loss|log_prob|cdf"
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
            import torch.nn.functional as F
            import torchvision.transforms.functional as TF
            from torchvision import transforms
            from torchvision.transforms import v2

            SCALE = transforms.Normalize([0.5], [0.5])


            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.ready = transforms.Compose([transforms.Resize(8), transforms.Normalize(0.5, 0.5)])
                    self.fast = v2.Normalize([0.5], [0.5])

                def forward(self, x, y):
                    scale = transforms.Normalize(mean=[0.5], std=[0.2])
                    x = scale(x / 255.0)  # XLA211
                    x = self.ready(x) + SCALE(x)  # XLA211 # XLA211
                    x = TF.normalize(x, [0.5], [0.5])  # XLA211
                    return F.gaussian_nll_loss(self.fast(x), y, x.exp())  # XLA211


            def rows(images):
                return [SCALE(image) for image in images]
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


            class Prior(torch.nn.Module):
                def forward(self, x, old):
                    now = Independent(Categorical(logits=x, validate_args=False), 1)
                    was = Categorical(logits=old, validate_args=False)
                    return kl_divergence(Independent(was, 1), now).mean()  # XLA211


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
        """Yield one distribution, or one check of a value."""
        assert isinstance(node, cst.Call)
        when = facts.steps.when(node)
        if when not in (When.STEP, When.EVERY_STEP):
            return
        severity = None if when is When.STEP else Severity.INFO
        check = _check(node, facts)
        if check and any(_is_tensor(arg.value, facts) for arg in node.args):
            message = f"`{code(node.func)}` {CHECKS[check]}: a read of the device; {INSTEAD[check]}"
            yield self.hit(node, message, severity)
        if facts.names.of(node.func) in DIVERGENCES:
            kinds = [_class_of(arg.value, facts) for arg in node.args]
            masked = next((kind for kind in kinds if kind in MASKED), None)
            if masked is not None:
                message = (
                    f"`{code(node.func)}` of {masked} sets values by masks, each a read of the device and a "
                    "compilation for each number of values; write it out: `(p * (p.log() - q.log())).sum(-1)`"
                )
                yield self.hit(node, message, severity)
        if facts.context.calls.unvalidated:
            return
        if is_distribution(node, facts):
            if any(_is_tensor(arg.value, facts) for arg in node.args):
                message = (
                    f"`{code(node.func)}` checks its parameters' values: each check reads the device, and so "
                    f"does each log_prob; {OFF}"
                )
                yield self.hit(node, message, severity)
        elif method(node) in VALIDATING and node.args and not facts.names.of(node.func):
            makers = [
                maker for maker in _made(receiver(node), facts) if is_distribution(maker, facts)
            ]
            ours = [maker for maker in makers if isinstance(maker, cst.Call)]
            reported = any(_is_tensor(arg.value, facts) for call in ours for arg in call.args)
            if ours and not reported and _is_tensor(node.args[0].value, facts):
                message = (
                    f"`{code(node.func)}` checks the value it is given: a read of the device; {OFF}"
                )
                yield self.hit(node, message, severity)


def _class_of(value: cst.BaseExpression, facts: Facts, depth: int = 3) -> str:
    """Return the class of a distribution of torch, without `Independent` around it; empty if unknown."""
    for maker in _made(value, facts) if depth else ():
        if isinstance(maker, cst.Call):
            name = (facts.names.of(maker.func) or "").removeprefix(PACKAGE).rpartition(".")[2]
            if name == "Independent" and maker.args:
                return _class_of(maker.args[0].value, facts, depth - 1)
            return name
    return ""


def _check(call: cst.Call, facts: Facts) -> str:
    """Return the function that checks values and that `call` runs, directly or by a transform, if any."""
    name = facts.names.of(call.func) or ""
    if name in CHECKS:
        return name
    if _normalizes(call.func, facts):
        return "torchvision.transforms.functional.normalize"
    makers = _made(call.func, facts) if isinstance(call.func, cst.Name | cst.Attribute) else []
    kinds = {facts.names.of(maker.func) for maker in makers if isinstance(maker, cst.Call)}
    return "torch.nn.functional.gaussian_nll_loss" if "torch.nn.GaussianNLLLoss" in kinds else ""


def _normalizes(node: cst.BaseExpression, facts: Facts, depth: int = 4) -> bool:
    """Whether `node` is a transform of torchvision that normalizes, or a sequence that holds one."""
    if isinstance(node, cst.Call):
        name = facts.names.of(node.func)
        if name in NORMALIZES:
            return True
        parts = [arg.value for arg in node.args] if name in HOLDS_TRANSFORMS else []
    elif isinstance(node, cst.List | cst.Tuple):
        parts = [element.value for element in node.elements]
    elif isinstance(node, cst.Name | cst.Attribute):
        parts = _made(node, facts) or facts.values.given_to(node)
    else:
        parts = []
    return depth > 0 and any(_normalizes(part, facts, depth - 1) for part in parts)


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
    """Whether `value` is on the device. In a step, unknown values and all tensors count too."""
    if facts.values.on_device(value):
        return True
    if not facts.steps.inside(value):
        return False
    kind = facts.values.kind(value)
    number = isinstance(value, cst.BaseNumber | cst.UnaryOperation)
    return kind is Kind.TENSOR or (kind is Kind.UNKNOWN and not number)


def _made(value: cst.BaseExpression, facts: Facts) -> list[cst.BaseExpression]:
    """Return the call that creates the distribution `value`."""
    if isinstance(value, cst.Name):
        values = [assignment.value for assignment in facts.bindings.reaching(value)]
        return [value for value in values if value is not None]
    return facts.values.given_to(value) if isinstance(value, cst.Attribute) else [value]
