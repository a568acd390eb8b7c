"""Environment variables that change every dtype, and the options of frameworks that set them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.catalogue.target import BOTH, TPU, Target
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.names.bindings import passed_for
from migrate.reading.values.environment import ENVIRON, access, is_read
from migrate.syntax.tree import keyword, last_part, string_value

VARIABLES = frozenset({"XLA_USE_BF16", "XLA_DOWNCAST_BF16"})
OFF = frozenset({"0", "false"})  # as torch_xla reads them
ACCELERATORS = frozenset({"accelerate.Accelerator", "accelerate.accelerator.Accelerator"})
ARGUMENTS = frozenset(
    {
        "transformers.Seq2SeqTrainingArguments",
        "transformers.TrainingArguments",
        "transformers.training_args.TrainingArguments",
        "transformers.training_args_seq2seq.Seq2SeqTrainingArguments",
    }
)
PRECISION = "accelerate.utils.PrecisionType"


class XlaBf16Environment(Hazard):
    """XLA_USE_BF16 makes every float32 tensor bfloat16.

    **Why.** The variable still acts in torch_xla 2.9 and warns: weights and the optimizer's state lose 16 of
    their bits without that the script shows it. On a TPU `Accelerator(mixed_precision="bf16")` sets it, and
    with `bf16=True` the Trainer of transformers does so by Accelerate. Neither runs an autocast there. Of 64
    weights, 51 did not move at all in 50 steps of AdamW with a learning rate of 1e-4.

    **What to do.** `torch.autocast('xla', dtype=torch.bfloat16)` around the forward pass and the loss, or
    `model.to(torch.bfloat16)`. With Accelerate also `mixed_precision="no"`; with the Trainer no `bf16=True`,
    and the autocast in an own `compute_loss`.

    Source: torch_xla 2.9 (measured), Accelerate 1.15, transformers 5.24.
    """

    code = "XLA505"
    name = "bf16-environment"
    severity = Severity.WARNING
    targets = BOTH
    on_torch_tpu = (
        "torch_tpu and its libtpu read neither variable (their files do not name them): what torch_xla "
        "computed in bfloat16 is float32 there, in twice the memory, without a word. "
        "`torch.autocast('tpu', dtype=torch.bfloat16)`, or `model.to(torch.bfloat16)`."
    )
    nodes = (cst.SimpleString, cst.Call)
    words = spelled(VARIABLES) + "|Accelerator|TrainingArguments"
    examples = (
        example(
            """
            import os

            os.environ["XLA_USE_BF16"] = "1"  # XLA505
            """
        ),
        example(
            """
            import os

            os.environ["PJRT_DEVICE"] = "TPU"
            os.environ["XLA_USE_BF16"] = "0"
            help_text = "XLA_USE_BF16 is not set by this script"
            """
        ),
        example(
            """
            import os

            os.environ.setdefault("XLA_DOWNCAST_BF16", "1")  # XLA505
            os.environ.update(XLA_USE_BF16="1")  # XLA505
            """
        ),
        example(
            """
            from accelerate import Accelerator
            from transformers import TrainingArguments

            PRECISION = "bf16"


            def main():
                accelerator = Accelerator(mixed_precision=PRECISION)  # XLA505
                arguments = TrainingArguments("out", bf16=True)  # XLA505
            """
        ),
        example(
            """
            from accelerate import Accelerator
            from transformers import TrainingArguments


            def main(parser):
                parser.add_argument("--mixed_precision", default="bf16")
                args = parser.parse_args()
                return Accelerator(mixed_precision=args.mixed_precision)  # XLA505


            def plain(precision="no"):
                accelerator = Accelerator(mixed_precision=precision)
                arguments = TrainingArguments("out", bf16=False)
            """
        ),
    )
    mended = example(
        """
        import torch


        def step(model, x):
            with torch.autocast("xla", dtype=torch.bfloat16):
                return model(x)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one mention of a variable, or one option that sets it."""
        if isinstance(node, cst.Call):
            yield from self._of_call(node, facts)
            return
        value = string_value(node)
        if value in VARIABLES and not _is_off(node, facts):
            yield self.hit(node, what_it_does(value, facts.target))

    def _of_call(self, call: cst.Call, facts: Facts) -> Iterator[Hit]:
        """Yield `os.environ.update(XLA_USE_BF16="1")`, or the option of a framework."""
        name = facts.names.of(call.func)
        if name == f"{ENVIRON}.update":
            for variable in sorted(VARIABLES):
                passed = keyword(call, variable)
                if passed is not None and string_value(passed.value) not in OFF:
                    yield self.hit(passed, what_it_does(variable, facts.target))
        elif facts.target == TPU:
            return  # for the rule frameworks
        elif name in ACCELERATORS:
            option = keyword(call, "mixed_precision")
            if option is not None and _may_be_bf16(option.value, facts):
                yield self.hit(
                    call,
                    "Accelerate's bf16 sets XLA_USE_BF16 on a TPU and runs no autocast: weights and "
                    "optimizer state are bfloat16: mixed_precision='no', and around the forward pass and the "
                    "loss torch.autocast('xla', dtype=torch.bfloat16)",
                )
        elif name in ARGUMENTS:
            option = keyword(call, "bf16")
            if option is not None and _is_true(option.value, facts):
                yield self.hit(
                    call,
                    "bf16=True sets XLA_USE_BF16 on a TPU, by Accelerate, and runs no autocast: weights and "
                    "optimizer state are bfloat16: leave it out, torch.autocast('xla', dtype=torch.bfloat16) "
                    "in compute_loss",
                )


def what_it_does(variable: str, target: Target) -> str:
    """Return what a variable that is set does with `target`, and what to write."""
    if target == TPU:
        return (
            f"torch_tpu does not read {variable}: the tensors that it made bfloat16 are float32 there: "
            'torch.autocast("tpu", dtype=torch.bfloat16), or model.to(torch.bfloat16)'
        )
    return f"{variable} makes every float32 bfloat16, weights too: torch.autocast"


def _is_off(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether the literal `node` names the variable that is switched off there: `os.environ[…] = "0"`."""
    variable = access(node, facts.context)
    if variable is None:
        return False
    above = facts.context.parent(facts.context.parent(variable))
    value: cst.BaseExpression | None = None
    if isinstance(variable, cst.Call) and not is_read(node, facts.context):
        value = variable.args[1].value if len(variable.args) > 1 else None
    elif isinstance(variable, cst.Subscript) and isinstance(above, cst.Assign):
        value = above.value
    return value is not None and string_value(value) in OFF


def _given(node: cst.BaseExpression, facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield what an expression may be: itself, what its name is bound to, the default of its option."""
    yield node
    if isinstance(node, cst.Name):
        yield from passed_for(node, facts.context)
        for binding in facts.context.bindings(node):
            if isinstance(binding.node, cst.Param) and binding.node.default is not None:
                yield binding.node.default
        for value in facts.context.bound_values(node):
            if isinstance(value, cst.BaseExpression):
                yield value
    if isinstance(node, cst.IfExp):
        yield from (node.body, node.orelse)
    if isinstance(node, cst.Attribute):
        yield from (
            value for _, value in facts.context.attributes.get(node.attr.value, ()) if value
        )
        for call in facts.calls:
            options = {string_value(arg.value) for arg in call.args if arg.keyword is None}
            if last_part(call.func) == "add_argument" and options & _spellings(node.attr.value):
                default = keyword(call, "default")
                if default is not None:
                    yield default.value


def _spellings(name: str) -> frozenset[str | None]:
    return frozenset({f"--{name}", f"--{name.replace('_', '-')}"})


def _may_be_bf16(node: cst.BaseExpression, facts: Facts) -> bool:
    return any(
        string_value(value) == "bf16" or facts.names.of(value) == f"{PRECISION}.BF16"
        for value in _given(node, facts)
    )


def _is_true(node: cst.BaseExpression, facts: Facts) -> bool:
    return any(isinstance(v, cst.Name) and v.value == "True" for v in _given(node, facts))
