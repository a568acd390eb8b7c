"""torch's layers as nnx modules, for layers that Flax lacks or has in another form."""

from converters.modules.nnx.activation import PReLU
from converters.modules.nnx.attention import MultiheadAttention
from converters.modules.nnx.bag import EmbeddingBag
from converters.modules.nnx.bilinear import Bilinear
from converters.modules.nnx.convolution import ConvTranspose
from converters.modules.nnx.embedding import PaddedEmbed
from converters.modules.nnx.normalization import BatchNorm, InstanceNorm, LayerNorm, RMSNorm
from converters.modules.nnx.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from converters.modules.nnx.reparametrization import SpectralNorm, WeightNorm
from converters.modules.nnx.softmax import AdaptiveLogSoftmaxWithLoss
from converters.modules.nnx.transformer import (
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
    "LayerNorm",
    "MultiheadAttention",
    "PReLU",
    "PaddedEmbed",
    "RMSNorm",
    "RNNCell",
    "SpectralNorm",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "WeightNorm",
]
