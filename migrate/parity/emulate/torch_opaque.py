"""ATen operations with products inside that only their kernel sees."""

from __future__ import annotations

import re

_PRODUCTS_INSIDE = re.compile(
    r"""
    .*(attention|multi_head|transformer_encoder)        # fused attention
    | .*(rnn|lstm|gru)                                  # recurrent kernels: of oneDNN, cuDNN, MIOpen
    | .*conv(?!ert)                                     # convolutions of one backend
    | .*(mm|addmv|bmm|matmul|linear)(?![a-z])           # products of another layout or packing
    | .*(dot|mv)(_|$) | .*trilinear | bilinear | .*euclidean_dist | hspmm | chain_matmul
    | _?linalg | .*(cholesky|triangular_solve|lu_solve|lu_with_info|spsolve|inverse|qr$|geqrf|orm?qr|svd)
    | matrix_exp | _compute_linear_combination | lstsq | .*householder
    | _?fft_(?!.*(freq|shift))                          # a product of matrices on a matrix unit
    """,
    re.VERBOSE,
)

# The pattern also matches these, but they work element by element, or only copy.
_NO_PRODUCTS = re.compile(
    r"linalg_(cross|diagonal|norm|vector_norm|matrix_norm|vecdot)$|_linalg_check_errors|slice_inverse"
    r"|.*_thnn_(fused|differentiable)_(lstm|gru)_cell|_?.*upsample_|_?_use_cudnn_rnn|_cudnn_rnn_flatten"
    r"|mkldnn_reorder_conv|_fused_sdp_choice|_cslt_sparse_mm_search"
)


def has_products_inside(name: str) -> bool:
    """Whether an ATen operation ("linalg_inv_ex") computes sums of products that no mode sees."""
    return _NO_PRODUCTS.match(name) is None and _PRODUCTS_INSIDE.match(name) is not None
