"""Page of a pattern, made from its docstring and its examples."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

from migrate.parity.causes.frame.pattern import FaultExample, Pattern


def page(pattern: Pattern) -> str:
    """Return the Markdown page of a cause."""
    _, _, body = inspect.cleandoc(pattern.__doc__ or "").partition("\n")
    parts = [f"# {pattern.name}: {pattern.title}", body.strip(), "## Example"]
    file = type(pattern).__module__
    causes = [
        pattern_class
        for pattern_class in Pattern.__subclasses__()
        if pattern_class.__module__ == file
    ]
    for example in pattern.examples:
        parts.extend(_example(example, causes))
    return "\n\n".join(parts) + "\n"


def index(patterns: Iterable[Pattern]) -> str:
    """Return the Markdown list of all causes."""
    head = [
        "# Causes",
        "",
        "Why a layer parts: what `migrate parity` tries on the first one that does. A test plants each in",
        "its own examples, where it must be named before every other; without the fault nothing is named.",
        "Made from the causes by `make docs`.",
        "",
        "The truth's layer runs again in float64 on its own inputs, rounded to the side's dtype (and the",
        "operands of its matrix products to bfloat16, where the side multiplies in one pass), with the",
        "layers inside it that have a partner giving what they gave; then once for each variant. A",
        "variant is the cause if what the layer gives, and what it gives to the layers inside it, is ten",
        "times nearer to the side's than without it, within the side's noise (relative L2 of 4e-6 in",
        "float32, 1e-2 in bfloat16 and for matmuls of one bf16 pass, 6e-5 for three), and on a second",
        "input too. Of several that come equally near the simplest is believed: a setting or a function",
        "before weights that lie otherwise, these before what is fitted to the side's values. Where none",
        "does, settings that differ are told as likely.",
        "",
        "| cause | what it is |",
        "|---|---|",
    ]
    ordered = sorted(patterns, key=lambda pattern: pattern.name)
    rows = [f"| [{pattern.name}]({pattern.name}.md) | {pattern.title} |" for pattern in ordered]
    return "\n".join([*head, *rows]) + "\n"


def _example(example: FaultExample, causes: Iterable[type[Pattern]]) -> Iterable[str]:
    shown = dict.fromkeys((_source(example.truth, causes), _source(example.faulty, causes)))
    yield "```python\n" + "\n\n\n".join(shown) + "\n```"
    yield f"Told: {example.says}"


def _source(maker: Callable[..., Any], causes: Iterable[type[Pattern]]) -> str:
    """Source of a function or class; for a lambda, the source of the class that it names.

    The modules of an example are private to their file. Where several causes of the file have such modules,
    they are named after their cause (`_EpsPlaceTruth`, `_norm_eps_truth`): the page shows the names without
    it.
    """
    if isinstance(maker, functools.partial):  # the arguments are part of the cause's name
        maker = maker.func
    if maker.__name__ == "<lambda>":
        named = [maker.__globals__.get(name) for name in maker.__code__.co_names]
        maker = next(
            candidate
            for candidate in named
            if isinstance(candidate, type) and candidate.__module__ == maker.__module__
        )
    source = inspect.getsource(maker).rstrip()
    names = [
        name
        for pattern_class in causes
        for name in (pattern_class.__name__, f"{pattern_class.name.replace('-', '_')}_")
    ]
    owners = "|".join(sorted(names, key=len, reverse=True))
    return re.sub(rf"\b_(?:{owners}|)(?=[A-Za-z])", "", source)
