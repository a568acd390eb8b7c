"""torch's layers as linen modules, for layers that Flax lacks or has in another form."""

from converters.modules.linen.activation import PReLU
from converters.modules.linen.attention import MultiheadAttention
from converters.modules.linen.bag import EmbeddingBag
from converters.modules.linen.bilinear import Bilinear
from converters.modules.linen.convolution import ConvTranspose
from converters.modules.linen.embedding import PaddedEmbed
from converters.modules.linen.normalization import BatchNorm, InstanceNorm
from converters.modules.linen.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from converters.modules.linen.reparametrization import SpectralNorm, WeightNorm
from converters.modules.linen.softmax import AdaptiveLogSoftmaxWithLoss
from converters.modules.linen.transformer import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "AdaptiveLogSoftmaxWithLoss",
    "BatchNorm",
    "Bilinear",
    "ConvTranspose",
    "EmbeddingBag",
    "GRUCell",
    "InstanceNorm",
    "LSTMCell",
    "MultiheadAttention",
    "PReLU",
    "PaddedEmbed",
    "RNNCell",
    "SpectralNorm",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "WeightNorm",
]
