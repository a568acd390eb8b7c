"""Activation checkpointing of `torch.utils.checkpoint`, by itself or in a library."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import NamedHazard, method, receiver
from migrate.check.hazard import Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.syntax.tree import code, last_part

# Methods of the models of transformers and diffusers, of timm and open_clip.
OF_TRANSFORMERS = frozenset(
    {
        "activation_checkpointing_enable",
        "enable_gradient_checkpointing",
        "gradient_checkpointing_enable",
    }
)
OF_TIMM = frozenset({"set_grad_checkpointing"})
OPTION = "gradient_checkpointing"
# Libraries whose configurations and arguments have that option.
LIBRARIES = frozenset(
    {"diffusers", "llamafactory", "sentence_transformers", "setfit", "transformers", "trl"}
)


class Checkpointing(NamedHazard):
    """Activation checkpointing of `torch.utils.checkpoint`, by itself or in a library.

    **Why.** It asks for the state of the device's random numbers, which XLA does not give that way, and
    raises. The models of transformers, diffusers, timm and open_clip checkpoint with it too.

    **What to do.** `from torch_xla.utils.checkpoint import checkpoint`: the same call, in the reentrant form
    only. A model of transformers takes it by `model._set_gradient_checkpointing(True, checkpoint)`, in place
    of `model.gradient_checkpointing_enable()` and of the option `gradient_checkpointing`. At least one
    input of each block must require a gradient: where the embeddings are frozen, as with LoRA, call
    `model.enable_input_require_grads()` too. A model of timm trains without it, or with a forward of your
    own around its blocks.

    Source: torch_xla 2.9, measured, also with transformers 5.23.
    """

    code = "XLA808"
    name = "activation-checkpoint"
    severity = Severity.ERROR
    words = "checkpoint"
    nodes = (cst.Name, cst.Attribute, cst.Call, cst.Assign)
    examples = (
        example(
            """
            from torch.utils.checkpoint import checkpoint


            def forward(block, x):
                return checkpoint(block, x)  # XLA808
            """
        ),
        example(
            """
            import timm
            import torch
            from transformers import AutoConfig, AutoModel, TrainingArguments


            def make(name, args):
                config = AutoConfig.from_pretrained(name)
                config.gradient_checkpointing = True  # XLA808
                model = AutoModel.from_pretrained(name)
                model.gradient_checkpointing_enable({"use_reentrant": False})  # XLA808
                tower = timm.create_model(name)
                tower.set_grad_checkpointing(args.checkpointing)  # XLA808
                options = TrainingArguments(gradient_checkpointing=True)  # XLA808
                return model.cuda(), tower.cuda(), options
            """
        ),
        example(
            """
            from torch_xla.utils.checkpoint import checkpoint


            def forward(block, x):
                return checkpoint(block, x)
            """
        ),
        example(
            """
            import torch
            from transformers import AutoModel, TrainingArguments


            class Own(torch.nn.Module):
                def __init__(self, options):
                    super().__init__()
                    self.gradient_checkpointing = False

                def gradient_checkpointing_enable(self):
                    self.gradient_checkpointing = True


            def make(name, config):
                own = Own(config)
                own.gradient_checkpointing_enable()
                config.gradient_checkpointing = True
                model = AutoModel.from_pretrained(name)
                model.set_grad_checkpointing(False)
                return own.cuda(), TrainingArguments(gradient_checkpointing=False)
            """
        ),
    )
    mended = example(
        """
        from torch_xla.utils.checkpoint import checkpoint


        def forward(block, x):
            return checkpoint(block, x)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the use of torch's checkpoint, or what makes a model of a library use it."""
        if isinstance(node, cst.Name | cst.Attribute):
            if facts.names.of(node) is not None:
                yield from super().find(node, facts)
        elif isinstance(node, cst.Assign):
            target = node.targets[0].target
            is_option = isinstance(target, cst.Attribute) and target.attr.value == OPTION
            if is_option and not _is_off(node.value):
                assert isinstance(target, cst.Attribute)
                if _is_of_library(target.value, facts):
                    yield self.hit(node, _say(f"{code(target)} = {code(node.value)}", facts))
        elif isinstance(node, cst.Call):
            yield from self._of_call(node, facts)

    def _of_call(self, call: cst.Call, facts: Facts) -> Iterable[Hit]:
        name = facts.context.qualified_name(call.func) or ""
        if name.partition(".")[0] in LIBRARIES:
            for arg in call.args:
                named = arg.keyword is not None and arg.keyword.value == OPTION
                if named and not _is_off(arg.value):
                    yield self.hit(arg, _say(f"{OPTION}={code(arg.value)}", facts))
        called = method(call)
        if called not in OF_TRANSFORMERS | OF_TIMM or facts.context.run_by(call):
            return
        if any(_is_off(arg.value) for arg in call.args[:1]):
            return
        of = receiver(call)
        if isinstance(of, cst.Call) and last_part(of.func) == "super":
            return  # the class of the project is called itself
        if called in OF_TIMM:
            message = (
                f"{code(of)}.{called} checkpoints with torch.utils.checkpoint, which raises on XLA: "
                "leave it out, or run the blocks by torch_xla.utils.checkpoint.checkpoint"
            )
            yield self.hit(call, message)
        elif facts.values.kind(of) is not Kind.HOST:
            yield self.hit(call, _say(f"{code(of)}.{called}", facts, code(of)))


def _say(what: str, facts: Facts, model: str = "model") -> str:
    own = "shims.checkpoint_activations"
    checkpoint = own if facts.context.portable else "torch_xla.utils.checkpoint.checkpoint"
    return (
        f"{what} checkpoints with torch.utils.checkpoint, which raises on XLA: "
        f"{model}._set_gradient_checkpointing(True, {checkpoint}) in its place, and "
        f"{model}.enable_input_require_grads() where the embeddings are frozen"
    )


def _is_off(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Name) and value.value in ("False", "None")


def _is_of_library(node: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `node` is the configuration of a library's model: made by it, or `model.config` of one."""
    if isinstance(node, cst.Attribute) and node.attr.value == "config":
        node = node.value
    if not isinstance(node, cst.Name):
        return False
    binding = facts.bindings.nearest(node)
    made = binding.value if binding is not None else None
    if not isinstance(made, cst.Call):
        return False
    name = facts.context.qualified_name(made.func) or ""
    return name.partition(".")[0] in LIBRARIES
