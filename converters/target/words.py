"""Normalized words of a path, as different code bases would agree on them, and its numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Complete expressions, in lower case with underscores, before they are split.
_PHRASES = tuple(
    (re.compile(pattern), word)
    for pattern, word in (
        (r"multi_?head_?(dot_?product_?)?attention|(?<![a-z])mha(?![a-z])", "attention"),
        (
            r"(layer|rms|batch|group|instance)_?norm(alization)?(\dd)?|(?<![a-z])(ln|bn)(?![a-z])",
            "norm",
        ),
        (r"conv(olution)?_?\dd|conv(olution)?(?![a-z])", "conv"),
        (
            r"(?<![a-z])wi_0(?!\d)",
            "gate",
        ),  # T5X's and MaxText's names for the two halves of a gated MLP
        (r"(?<![a-z])wi_1(?!\d)", "up"),
        (r"(?<![a-z])c_attn|in_proj(_weight|_bias)?", "qkv"),
        (r"(encoder|decoder|transformer|res|residual|mlp)_?blocks?", r"\1_block"),
        (r"self_?attn", "self_attention"),
        (
            r"cross_?attn|enc_dec_attention|encoder_attn|encoder_decoder_attention",
            "cross_attention",
        ),
        (r"lm_head|logits_dense|logits", "head"),
        (r"feed_?forward", "mlp"),
    )
)
_SYNONYMS = {
    word: canonical
    for canonical, words in {
        "query": "q wq",
        "key": "k wk",
        "value": "v wv",
        "out": "o wo output down",
        "attention": "attn",
        "block": "layer layers h blocks res residual",
        "dense": "fc linear lin",
        "mlp": "ffn ff intermediate",
        "embed": "embedding embeddings emb embedder",
        "token": "tok tokens word wte vocab shared",
        "position": "pos positional wpe positions",
        "head": "classifier heads",
        "pre": "input before",
        "post": "after",
        "final": "f last",
        "": "proj projection c i m params model module modules net network",
    }.items()
    for word in words.split()
}
# BERT and related models call the second half of the MLP this.
_MLP_OUTPUT = re.compile(r"(layers?[_/]\d+)/output(?=/|$)")
_PROJECTION = {"proj", "projection", "c_proj", "out_proj", "o_proj"}


@dataclass(frozen=True)
class Words:
    """Path as words.

    Attributes:
        words: the words in order, "#" for each number.
        numbers: the numbers in order.
    """

    words: tuple[str, ...]
    numbers: tuple[int, ...]

    @property
    def names(self) -> frozenset[str]:
        """Words without the numbers."""
        return frozenset(self.words) - {"#"}


def words_of(path: str) -> Words:
    """Return the words and numbers of a `/`-joined path.

    >>> words_of("params/encoder/layer_3/self_attn/q_proj")
    Words(words=('encoder', 'block', '#', 'self', 'attention', 'query'), numbers=(3,))
    """
    words: list[str] = []
    numbers: list[int] = []
    for level in _MLP_OUTPUT.sub(r"\1/mlp/output", path).split("/"):
        for word in _of_level(level):
            if word.isdigit():
                words.append("#")
                numbers.append(int(word))
            else:
                words.append(word)
    return Words(tuple(words), tuple(numbers))


def _of_level(level: str) -> list[str]:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", level).lower()
    snake = snake.replace(".", "_").replace("-", "_")
    if snake in _PROJECTION:
        return ["out"]
    for pattern, word in _PHRASES:
        snake = pattern.sub(word, snake)
    words = [_SYNONYMS.get(word, word) for word in re.findall(r"[a-z]+|\d+", snake)]
    return [word for word in words if word]
