"""Result types of torch operations and modules inside and outside of an XLA autocast region.

Source: torch 2.9 and torch_xla 2.9 (measured with inputs in float32 and in bfloat16).
"""

from __future__ import annotations

from migrate.catalogue.words import words

# In a region these return bfloat16 for any input.
NARROW = words(
    "addbmm addmm baddbmm bmm chain_matmul conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
    "conv_transpose3d einsum inner linear matmul mm prelu tensordot"
)
# In a region these return float32 for any input.
WIDE = words(
    "batch_norm binary_cross_entropy binary_cross_entropy_with_logits cdist cosine_embedding_loss "
    "cross_entropy ctc_loss gaussian_nll_loss huber_loss instance_norm kl_div l1_loss log_softmax mse_loss "
    "multilabel_soft_margin_loss nll_loss pow prod smooth_l1_loss soft_margin_loss softmax softmin square "
    "trace triplet_margin_loss"
)
# These return the type of their input, in a region and outside.
SAME = words(
    "abs adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d affine_grid amax amin avg_pool2d cat "
    "celu chunk clamp clamp_max clamp_min clip clone concat concatenate contiguous cos cpu cuda cumsum "
    "detach detach_ div dropout elu empty_like exp expand expand_as flatten flip full_like gather gelu "
    "hardtanh hsplit hstack index_select interpolate leaky_relu log log1p logsumexp masked_fill "
    "masked_select max_pool2d mean movedim mul narrow neg new_empty new_full new_ones new_zeros norm "
    "normalize ones_like pad permute pixel_shuffle rand_like randn_like reciprocal relu repeat "
    "repeat_interleave requires_grad_ reshape rms_norm roll rsqrt scaled_dot_product_attention sigmoid "
    "silu sin split sqrt squeeze stack std sub sum swapaxes swapdims t tanh transpose tril triu unbind "
    "unflatten unsqueeze upsample var view view_as vstack zeros_like"
)
# Outside of a region all of them return the type of their input.
COMPUTING = WIDE | NARROW | SAME
# Parts of a value: `x.data`, `x.T`.
PARTS = words("data T mT H mH real")
# With an argument they return values and indices.
RANKING = words("cummax cummin kthvalue max median min mode sort topk")
LISTS = words("deque list reversed sorted tuple")
ROOTS = ("torch.nn.functional.", "torch.special.", "torch.")
MODULES = "torch.nn."
# Modules, by the result type in a region; a norm with float32 weights returns float32.
NARROW_MODULES = words(
    "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d Linear MultiheadAttention"
)
SAME_MODULES = words(
    "AdaptiveAvgPool1d AdaptiveAvgPool2d AvgPool2d Dropout Dropout2d Flatten GELU Identity LeakyReLU "
    "MaxPool2d PixelShuffle RMSNorm ReLU SiLU Sigmoid Tanh Unflatten Upsample"
)
# Norms that return float32 in a region if their weights are float32.
WIDE_MODULES = words(
    "BatchNorm1d BatchNorm2d BatchNorm3d GroupNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d LayerNorm"
)
# These make float32 without a `dtype` argument.
MAKING = words("eye hann_window linspace logspace rand randn")
FLOATS = frozenset({"torch.float32", "torch.float"})
PARAMETERS = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})
# Functions of other libraries that only change the shape of a tensor.
REARRANGING = frozenset({"einops.rearrange", "einops.repeat"})
# Methods that take the wider type of two tensors.
TWO_SIDED = words("add div mul sub")
# These return tuples of equal parts.
EQUAL_PARTS = words("chunk hsplit split tensor_split unbind")
