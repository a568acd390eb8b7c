"""Hazard of a model that is set to compute its attention with a CUDA kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.common import truth
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.manual_work import ManualWork
from migrate.check.only_cuda import only_with_cuda
from migrate.reading.facts import Facts
from migrate.syntax.tree import last_part, string_value

NAMED = re.compile(r"_?attn_implementation(_internal)?")
KERNEL = re.compile(
    r"(paged\|)?(flash_attention_\d.*|flex_attention|sage_attention.*|flashmask.*)|[\w.-]+/.+"
)
SWITCHES = frozenset({"use_flash_attention_2", "use_kernels"})
ADVICE = 'attn_implementation="sdpa", which XLA computes'


class AttentionImplementation(Hazard):
    """A model is told to compute its attention with a CUDA kernel.

    **Why.** `attn_implementation="flash_attention_2"`, `"flash_attention_3"`, `"flex_attention"` and the
    names of kernels on a hub (`"kernels-community/…"`) make a transformers model call kernels that do not
    take tensors of XLA; `use_kernels=True` does the same for other layers.

    **What to do.** `attn_implementation="sdpa"` or `"eager"`, and no `use_kernels`.
    """

    code = "XLA414"
    name = "attention-implementation"
    severity = Severity.ERROR
    targets = BOTH
    other_work = ManualWork.KERNELS
    nodes = (cst.Arg, cst.Assign, cst.DictElement)
    words = r"attn_implementation|use_flash_attention_2|use_kernels"
    examples = (
        example(
            """
            from transformers import AutoModel

            model = AutoModel.from_pretrained("m", attn_implementation="flash_attention_2")  # XLA414
            other = AutoModel.from_pretrained("m", attn_implementation="a-hub/flash-attn3")  # XLA414
            options = {"attn_implementation": "flash_attention_3" if fast else "sdpa"}  # XLA414
            model.config._attn_implementation = "flex_attention"  # XLA414
            quick = AutoModel.from_pretrained("m", use_kernels=True)  # XLA414
            """
        ),
        example(
            """
            from transformers import AutoModel

            model = AutoModel.from_pretrained("flash_attention_2", attn_implementation="sdpa")
            plain = AutoModel.from_pretrained("a/b", use_kernels=False, attn_implementation=args.attention)
            """
        ),
    )
    mended = example(
        """
        from transformers import AutoModel

        model = AutoModel.from_pretrained("m", attn_implementation="sdpa")
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one argument, one entry of a dictionary or one assignment."""
        assert isinstance(node, cst.Arg | cst.Assign | cst.DictElement)
        name = _name(node)
        switch = name in SWITCHES and "transformers" in facts.names.roots
        if switch and truth(node.value, facts):
            message = f"{name}=True takes CUDA kernels: leave it out, {ADVICE}"
        elif NAMED.fullmatch(name) and (kernel := _kernel(node.value, facts)):
            message = f"{name} {kernel!r} is a CUDA kernel: {ADVICE}"
        else:
            return
        never = only_with_cuda(node, facts)
        yield self.hit(node.value, message, Severity.INFO if never else None)


def _name(node: cst.Arg | cst.Assign | cst.DictElement) -> str:
    """Return what the value is given to: a parameter, a key, an attribute or a variable."""
    if isinstance(node, cst.Arg):
        return node.keyword.value if node.keyword is not None else ""
    if isinstance(node, cst.DictElement):
        return string_value(node.key) or ""
    return last_part(node.targets[0].target)


def _kernel(value: cst.BaseExpression, facts: Facts) -> str:
    """Return the kernel that `value` names, itself or by what a variable is bound to."""
    values = [value]
    if isinstance(value, cst.Name):
        values = [v for v in facts.context.bound_values(value) if isinstance(v, cst.BaseExpression)]
    for origin in values:
        if isinstance(origin, cst.BaseString | cst.IfExp):
            for string in facts.below(origin, cst.SimpleString):
                text = string_value(string) or ""
                if KERNEL.fullmatch(text):
                    return text
    return ""
