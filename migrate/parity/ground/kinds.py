"""What class of operation a layer is, by the name of its class in torch, linen or nnx."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from enum import StrEnum


class Operation(StrEnum):
    """Classes of operations that have limits of their own."""

    MATMUL = "matmul"  # contractions: dense, convolutions, attention
    NORMALISATION = "normalisation"
    SOFTMAX = "softmax"
    ELEMENTWISE = "elementwise"  # activations
    MOVEMENT = "movement"  # embeddings, maxima, reshapes, dropout in evaluation
    RECURRENT = "recurrent"
    POSITIONAL = "positional"  # sines and cosines of positions
    COMPOSITE = (
        "composite"  # what a layer adds to the layers inside it, or a class that is not known
    )


# Searched in this order, in the class's name without underscores, lower case.
_NAMES: tuple[tuple[Operation, str], ...] = (
    (
        Operation.MOVEMENT,
        r"dropout|droppath|stochasticdepth|identity$|^(un)?flatten|(shuffle|unfold|permute|reshape|view)$"
        r"|^(adaptive)?maxpool|pad(ding)?[123]d$|^upsamplingnearest",
    ),
    (Operation.POSITIONAL, r"rotary|rope$|sinusoid|fourierposition|timesteps$|timestepembed"),
    (
        Operation.MOVEMENT,
        r"^embed$|^embedding(bag)?$|scaledwordembedding|learnedpositionalembedding|^(token|position|word)embed",
    ),
    (Operation.RECURRENT, r"(lstm|gru|rnn)(cell)?$|^simplecell$|^bidirectional$"),
    (Operation.NORMALISATION, r"norm([123]d)?$|batchstat"),
    (Operation.SOFTMAX, r"^(log)?soft(max|min)([123]d)?$"),
    (
        Operation.ELEMENTWISE,
        r"^((leaky|p|r)?relu6?|c?elu|selu|(hard)?(sigmoid|tanh|swish)|log(sigmoid)|soft(plus|sign|shrink)"
        r"|silu|mish|threshold|tanhshrink|hardshrink)$|gelu|activation$|^sigmoid|^tanh",
    ),
    (
        Operation.MATMUL,
        r"^(bi)?linear|^(lora)?dense|densegeneral|linear(general)?$|^einsum$|conv(transpose)?(local)?([123]d)?$"
        r"|^conv|attention$|^.*avgpool|averagepool|dotproduct",
    ),
)


@functools.cache
def operation(kind: str) -> Operation:
    """The class of operation of a layer with this class name ("LayerNorm", "nnx.Linear")."""
    name = kind.rpartition(".")[2].replace("_", "").lower()
    for found, pattern in _NAMES:
        if re.search(pattern, name):
            return found
    return Operation.COMPOSITE


# Words for what frameworks call differently: layers of one family may stand for one another.
_FAMILIES: Mapping[str, str] = {
    "dense": "linear",
    "densegeneral": "linear",
    "lineargeneral": "linear",
    "embed": "embedding",
    "silu": "swish",
}


def family(kind: str) -> str:
    """A word that two layers of different frameworks share if they are the same operation."""
    name = kind.rpartition(".")[2].replace("_", "").lower()
    name = re.sub(r"([123]d|activation|layer)$", "", name)
    return _FAMILIES.get(name, name)


def does_nothing(kind: str) -> bool:
    """Whether it gives back what it gets, in evaluation."""
    name = kind.rpartition(".")[2].replace("_", "").lower()
    return bool(re.search(r"dropout|droppath|stochasticdepth|identity$", name))
