"""Activation checkpointing: recompute in the backward what the forward did not keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.check.common import method, receiver
from migrate.model.calls.kind import Kind
from migrate.rewrite.edits.nodes import with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, keyword, last_part

CHECKPOINT = "torch.utils.checkpoint.checkpoint"
SEQUENTIAL = "torch.utils.checkpoint.checkpoint_sequential"
# Methods of the models of transformers and diffusers, of timm and open_clip.
OF_TRANSFORMERS = frozenset(
    {
        "activation_checkpointing_enable",
        "enable_gradient_checkpointing",
        "gradient_checkpointing_enable",
    }
)
OF_TIMM = frozenset({"set_grad_checkpointing"})
# Functions of libraries that call torch's, or wrap modules in it, by their last names.
FUNCTIONS = {
    "apply_activation_checkpointing": ("torch.distributed.algorithms", "fairscale"),
    "checkpoint_seq": ("timm",),
    "checkpoint_wrapper": ("torch.distributed.algorithms", "fairscale"),
}
OPTION = "gradient_checkpointing"
# Libraries whose configurations and arguments have that option.
LIBRARIES = frozenset(
    {"diffusers", "llamafactory", "sentence_transformers", "setfit", "transformers", "trl"}
)


class ActivationCheckpointing(Rule):
    """Checkpoint activations with `torch_xla.utils.checkpoint`.

    **Why.** torch's asks for the state of the device's random numbers, which XLA does not give that way, and
    raises. The models of transformers, diffusers, timm and open_clip checkpoint with it too.

    **What it does.** `torch.utils.checkpoint.checkpoint(block, x)` becomes
    `torch_xla.utils.checkpoint.checkpoint(block, x)`. Without the barrier in torch_xla's the compiler would
    merge the second forward with the first.

    **Reported.** `use_reentrant=False`: torch_xla has the reentrant form only, in which at least one input
    must require a gradient; where none does, as in the first block over raw data, the parameters inside get
    none. Other options of the form without reentrance, keyword arguments of the function,
    `checkpoint_sequential`, and what calls torch's: `checkpoint_seq` of timm, the wrappers of
    torch.distributed and fairscale. What makes a model of a library checkpoint with torch's: a model of
    transformers takes torch_xla's by `model._set_gradient_checkpointing(True, checkpoint)`, in place of
    `model.gradient_checkpointing_enable()` and of the option `gradient_checkpointing`; where the embeddings
    are frozen, as with LoRA, call `model.enable_input_require_grads()` too. A model of timm trains without
    it, or with a forward of your own around its blocks.

    Source: torch 2.9 on torch_xla 2.9, also with transformers 5.23 (measured).
    """

    name = "activation-checkpointing"
    code = "XLA808"
    beside_frameworks = True
    nodes = (cst.Call, cst.Assign)
    words = "checkpoint"
    examples = (
        rewritten(
            """
            import torch.utils.checkpoint as checkpoint


            def forward(blocks, x):
                for block in blocks:
                    x = checkpoint.checkpoint(block, x, use_reentrant=True)
                return x
            """,
            """
            import torch_xla.utils.checkpoint


            def forward(blocks, x):
                for block in blocks:
                    x = torch_xla.utils.checkpoint.checkpoint(block, x, use_reentrant=True)
                return x
            """,
        ),
        left_alone(
            """
            from mylib.checkpoint import checkpoint

            checkpoint(model, 'last.pt')
            """
        ),
        reported(
            """
            from torch.utils.checkpoint import checkpoint


            def forward(block, x):
                return checkpoint(block, x, use_reentrant=False)
            """,
            "one input must require a gradient",
        ),
        reported(
            """
            from torch.utils.checkpoint import checkpoint_sequential


            def forward(blocks, x):
                return checkpoint_sequential(blocks, 4, x, use_reentrant=True)
            """,
            "one block at a time",
        ),
        checked(
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
        checked(
            """
            import torch
            from timm.models import checkpoint_seq
            from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper


            class Blocks(torch.nn.Module):
                def __init__(self, blocks):
                    super().__init__()
                    self.last = checkpoint_wrapper(blocks[-1])  # XLA808
                    self.blocks = blocks

                def forward(self, x):
                    return self.last(checkpoint_seq(self.blocks, x.cuda()))  # XLA808
            """
        ),
        checked(
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

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one checkpointed call, or why it is left."""
        if isinstance(node, cst.Assign):
            yield from self._of_option(node, context)
            return
        assert isinstance(node, cst.Call)
        yield from self._of_library(node, context)
        name = context.qualified_name(node.func)
        if name == SEQUENTIAL:
            message = (
                "checkpoint_sequential raises for XLA tensors: call "
                f"{context.vocabulary.say('checkpoint activations')} on one block at a time"
            )
            yield from self.report(node, message)
        last = (name or "").rpartition(".")[2]
        if (name or "").startswith(FUNCTIONS.get(last, ())) and last in FUNCTIONS:
            message = (
                f"{last} checkpoints with torch.utils.checkpoint, which raises on XLA: call "
                f"{context.vocabulary.say('checkpoint activations')} on one block at a time"
            )
            yield from self.report(node, message)
        if name != CHECKPOINT:
            return
        said = context.vocabulary.say("checkpoint activations")
        if refused := self._refused(node, said, context.portable):
            yield from self.report(node, refused)
            return
        function = context.vocabulary.expression("checkpoint activations")
        reentrant = keyword(node, "use_reentrant") if context.portable else None
        kept = [index for index, arg in enumerate(node.args) if arg is not reentrant]

        def replace(updated: cst.Call) -> cst.Call:
            args = [updated.args[index] for index in kept]
            return with_args(updated, args).with_changes(func=function)

        gone = [] if reentrant is None else [reentrant]
        yield self.edit(node, replace, f"checkpoint → {said}", consumes=[node.func, *gone])

    def _of_option(self, assign: cst.Assign, context: Workspace) -> Iterator[RuleFinding]:
        """Yield the finding at an option of a library's model that makes it use torch's checkpoint."""
        target = assign.targets[0].target
        if not isinstance(target, cst.Attribute) or target.attr.value != OPTION:
            return
        if not _is_off(assign.value) and _is_of_library(target.value, context):
            yield from self.report(assign, _say(f"{code(target)} = {code(assign.value)}", context))

    def _of_library(self, call: cst.Call, context: Workspace) -> Iterator[RuleFinding]:
        """Yield the finding at a call that makes a model of a library use torch's checkpoint."""
        name = context.qualified_name(call.func) or ""
        if name.partition(".")[0] in LIBRARIES:
            for arg in call.args:
                named = arg.keyword is not None and arg.keyword.value == OPTION
                if named and not _is_off(arg.value):
                    message = _say(f"{OPTION}={code(arg.value)}", context)
                    yield from self.report(arg, message)
        called = method(call)
        if called not in OF_TRANSFORMERS | OF_TIMM or context.run_by(call):
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
            yield from self.report(call, message)
        elif context.values.kind(of) is not Kind.HOST:
            yield from self.report(call, _say(f"{code(of)}.{called}", context, code(of)))

    def _refused(self, call: cst.Call, said: str, portable: bool) -> str | None:
        """Return why the call cannot be the checkpoint `said`, or None."""
        reentrant = keyword(call, "use_reentrant")
        if not portable and reentrant is not None and code(reentrant.value) != "True":
            return (
                f"checkpoint with {code(reentrant.value)} for use_reentrant: torch's raises for XLA "
                f"tensors, and {said} is reentrant only: one input must require a gradient"
            )
        known = {"use_reentrant", "preserve_rng_state"}
        others = [
            arg.keyword.value for arg in call.args if arg.keyword and arg.keyword.value not in known
        ]
        if others or any(arg.star == "**" for arg in call.args):
            what = ", ".join(others) or "** arguments"
            return f"checkpoint with {what}: {said} passes positional arguments only"
        return None


def _say(what: str, context: Workspace, model: str = "model") -> str:
    own = "shims.checkpoint_activations"
    checkpoint = own if context.portable else "torch_xla.utils.checkpoint.checkpoint"
    return (
        f"{what} checkpoints with torch.utils.checkpoint, which raises on XLA: "
        f"{model}._set_gradient_checkpointing(True, {checkpoint}) in its place, and "
        f"{model}.enable_input_require_grads() where the embeddings are frozen"
    )


def _is_off(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Name) and value.value in ("False", "None")


def _is_of_library(node: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `node` is the configuration of a library's model: made by it, or `model.config` of one."""
    if isinstance(node, cst.Attribute) and node.attr.value == "config":
        node = node.value
    if not isinstance(node, cst.Name):
        return False
    binding = context.values.bindings.nearest(node)
    call = binding.value if binding is not None else None
    if not isinstance(call, cst.Call):
        return False
    name = context.qualified_name(call.func) or ""
    return name.partition(".")[0] in LIBRARIES
