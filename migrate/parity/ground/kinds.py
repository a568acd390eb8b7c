"""Class of operation of a layer, by the name of its class in torch, linen or nnx."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from enum import StrEnum


class OperationClass(StrEnum):
    """Classes of operations with limits of their own."""

    MATMUL = "matmul"  # contractions: dense, convolutions, attention
    NORMALIZATION = "normalization"
    SOFTMAX = "softmax"
    ELEMENTWISE = "elementwise"  # activations
    MOVEMENT = "movement"  # embeddings, maxima, reshapes, dropout in evaluation
    RECURRENT = "recurrent"
    POSITIONAL = "positional"  # sines and cosines of positions
    COMPOSITE = (
        "composite"  # what a layer adds to the layers inside it, or a class that is not known
    )


# Searched in this order, in the class's name without underscores, lower case.
_NAMES: tuple[tuple[OperationClass, str], ...] = (
    (
        OperationClass.MOVEMENT,
        r"dropout|droppath|stochasticdepth|identity$|^(un)?flatten|(shuffle|unfold|permute|reshape|view)$"
        r"|^(adaptive)?maxpool|pad(ding)?[123]d$|^upsamplingnearest",
    ),
    (OperationClass.POSITIONAL, r"rotary|rope$|sinusoid|fourierposition|timesteps$|timestepembed"),
    (
        OperationClass.MOVEMENT,
        r"^embed$|^embedding(bag)?$|scaledwordembedding|learnedpositionalembedding|^(token|position|word)embed",
    ),
    (OperationClass.RECURRENT, r"(lstm|gru|rnn)(cell)?$|^simplecell$|^bidirectional$"),
    (OperationClass.NORMALIZATION, r"norm([123]d)?$|batchstat"),
    (OperationClass.SOFTMAX, r"^(log)?soft(max|min)([123]d)?$"),
    (
        OperationClass.ELEMENTWISE,
        r"^((leaky|p|r)?relu6?|c?elu|selu|(hard)?(sigmoid|tanh|swish)|log(sigmoid)|soft(plus|sign|shrink)"
        r"|silu|mish|threshold|tanhshrink|hardshrink)$|gelu|activation$|^sigmoid|^tanh",
    ),
    (
        OperationClass.MATMUL,
        r"^(bi)?linear|^(lora)?dense|densegeneral|linear(general)?$|^einsum$|conv(transpose)?(local)?([123]d)?$"
        r"|^conv|attention$|^.*avgpool|averagepool|dotproduct",
    ),
)


@functools.cache
def operation(kind: str) -> OperationClass:
    """The class of operation of a layer with this class name ("LayerNorm", "nnx.Linear")."""
    name = kind.rpartition(".")[2].replace("_", "").lower()
    for operation_class, pattern in _NAMES:
        if re.search(pattern, name):
            return operation_class
    return OperationClass.COMPOSITE


# Common words for layers that frameworks name differently: layers of one family may stand for one another.
_FAMILIES: Mapping[str, str] = {
    "dense": "linear",
    "densegeneral": "linear",
    "lineargeneral": "linear",
    "embed": "embedding",
    "silu": "swish",
}


def family(kind: str) -> str:
    """Word that two layers of different frameworks share if they are the same operation."""
    name = kind.rpartition(".")[2].replace("_", "").lower()
    name = re.sub(r"([123]d|activation|layer)$", "", name)
    return _FAMILIES.get(name, name)


def does_nothing(kind: str) -> bool:
    """Whether a layer returns its input in evaluation mode."""
    name = kind.rpartition(".")[2].replace("_", "").lower()
    return bool(re.search(r"dropout|droppath|stochasticdepth|identity$", name))
