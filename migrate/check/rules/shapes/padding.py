"""Batches padded to their own longest sample."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.tree.tree import code, keyword, string_value

COLLATORS = (
    "DataCollatorWithPadding",
    "DataCollatorForTokenClassification",
    "DataCollatorForSeq2Seq",
)


class Padding(Hazard):
    """Batches are padded to their own longest sample.

    **Why.** Nearly every batch has a length of its own then, and every length is a compilation of the
    whole step.

    **What to do.** Pad to one length, or to one of a few: `shims.pad_collate`, `padding="max_length"`,
    `pad_to_multiple_of=128`.
    """

    code = "XLA109"
    name = "padding"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    examples = (
        example(
            """
            from torch.nn.utils.rnn import pad_sequence
            from transformers import DataCollatorWithPadding


            def collate_fn(samples):
                return pad_sequence(samples, batch_first=True)  # XLA109


            def tokenize(tokenizer, texts):
                return tokenizer(texts, padding=True, return_tensors="pt")  # XLA109


            def make(tokenizer):
                return DataCollatorWithPadding(tokenizer)  # XLA109
            """
        ),
        example(
            """
            import torch
            from transformers import DataCollatorWithPadding


            def tokenize(tokenizer, texts):
                conv = torch.nn.Conv2d(3, 3, 1, padding=True)
                return tokenizer(texts, padding="max_length", return_tensors="pt")


            def make(tokenizer):
                return DataCollatorWithPadding(tokenizer, pad_to_multiple_of=128)
            """
        ),
    )
    mended = example(
        """
        import torch
        from transformers import DataCollatorWithPadding


        def collate_fn(samples, length=512):
            rows = torch.zeros(len(samples), length, dtype=torch.long)
            for row, sample in zip(rows, samples):
                row[: len(sample)] = sample
            return rows


        def tokenize(tokenizer, texts):
            return tokenizer(texts, padding="max_length", max_length=512, return_tensors="pt")


        def make(tokenizer):
            return DataCollatorWithPadding(tokenizer, padding="max_length", max_length=512)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call that pads to the longest."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func) or ""
        message = "pads to the longest of each batch: a compilation for each length; pad to a few"
        if name == "torch.nn.utils.rnn.pad_sequence":
            yield self.hit(node, f"pad_sequence {message}")
            return
        if keyword(node, "pad_to_multiple_of") is not None:
            return
        padding, tensors = keyword(node, "padding"), keyword(node, "return_tensors")
        longest = padding is not None and _is_longest(padding.value)
        if name.startswith("transformers.") and name.endswith(COLLATORS):
            if padding is None or longest:
                yield self.hit(node, f"{name.rpartition('.')[2]} {message}")
        elif longest and tensors is not None and string_value(tensors.value) == "pt":
            yield self.hit(node, f"padding={code(padding.value) if padding else ''} {message}")


def _is_longest(value: cst.BaseExpression) -> bool:
    return code(value) == "True" or string_value(value) == "longest"
