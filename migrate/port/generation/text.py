"""`generate.py`: the cache of a port, and generation with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from migrate.port.generation.pieces import (
    CHOICE,
    DECODER,
    ENCODER_DECODER,
    HEAD,
    INIT_CACHE,
    LOOP,
    RECURRENT,
)


@dataclass(frozen=True)
class Ends:
    """Defaults of the original's generation.

    Attributes:
        eos: tokens that end a sequence.
        pad: the token that stands behind the end.
        start: the token that a decoder starts with; None: the model has no encoder.
        suppressed: tokens that are never generated.
        suppressed_first: tokens that are not generated first.
    """

    eos: tuple[int, ...] = ()
    pad: int = 0
    start: int | None = None
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()


def generate_text(model: str, config: str, cache: Any, ends: Ends) -> str:
    """The source of `generate.py`.

    Args:
        model: the model's class.
        config: the class of its sizes.
        cache: the cache of the port (`converters.graph.writing.cache.Cache`).
        ends: defaults of the original.
    """
    recorded = cache.recorded
    body = ENCODER_DECODER if recorded.encoder else DECODER if recorded.grows else RECURRENT
    text = "".join((HEAD, INIT_CACHE, CHOICE, LOOP[recorded.grows], body))
    passed = ["tokens", "cache"]
    passed += ["cross"] if recorded.encoder else []
    passed += ["index"] if recorded.grows else []
    if recorded.attention_mask:
        passed.append("mask")
    if recorded.position_ids:
        passed.append("jax.lax.dynamic_slice_in_dim(positions, index, tokens.shape[1], axis=1)")
    if recorded.encoder_mask:
        passed.append("encoder_mask")
    shape, entries = _entries(cache)
    fills = {
        "MODEL": model,
        "CONFIG": config,
        "SHAPES": shape,
        "ENTRIES": entries,
        "EOS": repr(ends.eos),
        "PAD": repr(ends.pad),
        "START": repr(ends.start),
        "SUPPRESSED_FIRST": repr(ends.suppressed_first),
        "SUPPRESSED": repr(ends.suppressed),
        "DECODE_ARGUMENTS": ", ".join(passed),
        "POSITIONS_LIMIT": cache.positions or "None",
        "ENCODER_INPUT": recorded.encoder[0] if recorded.encoder else "",
        "ENCODER_AXES": str(recorded.encoder_axes),
        "TOKENS_MASK": "decoder_attention_mask" if recorded.encoder else "attention_mask",
        "TOKENS": recorded.tokens,
    }
    for name, value in fills.items():
        text = text.replace(f"__{name}__", value)
    return _chosen(text, _conditions(recorded, ends, cache))


def _conditions(recorded: Any, ends: Ends, cache: Any) -> Mapping[str, bool]:
    return {
        "positions": bool(recorded.position_ids),
        "mask": bool(recorded.attention_mask),
        "encoder_mask": bool(recorded.encoder_mask),
        "cross": bool(recorded.encoder),
        "limit": bool(cache.positions),
        "suppressed": bool(ends.suppressed or ends.suppressed_first),
    }


def _chosen(text: str, conditions: Mapping[str, bool]) -> str:
    """The text without the lines whose condition (`#? name` at the end) does not hold."""
    lines = []
    for line in text.splitlines():
        plain, mark, condition = line.partition("  #? ")
        if not mark:
            lines.append(line)
            continue
        wanted = not condition.startswith("not ")
        if conditions[condition.removeprefix("not ")] == wanted:
            lines.append(plain)
    return "\n".join(lines) + "\n"


def _entries(cache: Any) -> tuple[str, str]:
    """The shape of the entries' tensors, if they have one, and the list of entries: a comprehension
    if all layers are alike.
    """
    shapes = {tuple(sides) for parts in cache.shapes for sides in parts.values()}
    single = shapes.pop() if len(shapes) == 1 else None
    line = f"    shape = ({', '.join(single)})\n" if single else ""
    entries = [
        _entry(
            {name: "shape" if single else f"({', '.join(sides)})" for name, sides in parts.items()}
        )
        for parts in cache.shapes
    ]
    if len(set(entries)) == 1:
        return line, f"[{entries[0]} for _ in range({cache.layers})]"
    return line, f"[{', '.join(entries)}]"


def _entry(shapes: Mapping[str, str]) -> str:
    inner = (f'"{name}": jnp.zeros({shape}, dtype)' for name, shape in shapes.items())
    return f"{{{', '.join(inner)}}}"
