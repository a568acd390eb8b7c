"""Operators of PyTorch that torch_xla 2.9 runs on the CPU, in the forward or the backward pass.

Measured with the counters `aten::…` of `torch_xla.debug.metrics`, on CPU devices. The gradients of 2-D
`nearest` and `bilinear` interpolation run on the CPU there only, as torch_xla lowers both for a TPU.
"""

from __future__ import annotations

from migrate.catalogue.words import words

# Functions of torch that are methods of a tensor as well.
TENSOR_OPERATORS = words(
    "addbmm addbmm_ addmv addmv_ aminmax angle bincount cauchy_ cholesky_inverse cholesky_solve copysign "
    "corrcoef cov cross cummin det digamma exp2 fmax fmin frexp gcd geometric_ geqrf heaviside histc "
    "histogram hypot i0 igamma igammac index_reduce index_reduce_ inverse isposinf lcm lgamma log_normal_ "
    "logaddexp logcumsumexp logit lu_solve matrix_exp median mode multinomial mvlgamma nanmean nanmedian "
    "nansum nextafter ormqr polygamma qr renorm signbit sinc vdot"
)
# Functions of torch alone.
TORCH_FUNCTIONS = words(
    "_int_mm _scaled_mm binomial bucketize cdist channel_shuffle combinations complex "
    "fake_quantize_per_channel_affine fake_quantize_per_tensor_affine histogramdd isin "
    "nonzero_static istft pca_lowrank poisson polar searchsorted segment_reduce "
    "stft svd_lowrank tril_indices triu_indices"
)
# Methods of a tensor alone.
TENSOR_METHODS = words("bucketize unfold")
OPERATORS = TENSOR_OPERATORS | TENSOR_METHODS
# Transforms of kornia.augmentation that compute their geometry, or choose their images, with reads of the
# device and operators of the CPU (measured with kornia 0.9).
KORNIA = words("RandomAffine RandomResizedCrop")
FUNCTIONAL = words(
    "channel_shuffle ctc_loss adaptive_max_pool3d embedding_bag fold fractional_max_pool2d "
    "fractional_max_pool3d glu grid_sample huber_loss multi_margin_loss multilabel_margin_loss pdist rrelu "
    "unfold"
)
LINALG = words(
    "cholesky cholesky_ex cross det eig eigvals householder_product inv ldl_factor ldl_solve lstsq lu "
    "lu_factor lu_solve matrix_exp qr solve solve_ex solve_triangular"
)
SPECIAL = words(
    "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 digamma entr erfcx gammaln i0 i0e i1 i1e log_ndtr "
    "modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 multigammaln ndtri "
    "polygamma psi scaled_modified_bessel_k0 scaled_modified_bessel_k1 sinc xlog1py zeta"
)
# Run on the device in the forward pass.
ONLY_BACKWARD = words("cdist glu logit")
# Run on the CPU only with one of these keyword arguments.
WITH_ARGUMENT = {
    "torch.addmm": {"alpha", "beta"},
    "torch.nn.functional.embedding": {"max_norm"},
    "torch.round": {"decimals"},
}
# Modules of torch.nn, by the function of torch.nn.functional that they call.
MODULES = {
    "AdaptiveMaxPool3d": "adaptive_max_pool3d",
    "CTCLoss": "ctc_loss",
    "ChannelShuffle": "channel_shuffle",
    "EmbeddingBag": "embedding_bag",
    "Fold": "fold",
    "FractionalMaxPool2d": "fractional_max_pool2d",
    "FractionalMaxPool3d": "fractional_max_pool3d",
    "GLU": "glu",
    "HuberLoss": "huber_loss",
    "MultiLabelMarginLoss": "multilabel_margin_loss",
    "MultiMarginLoss": "multi_margin_loss",
    "RReLU": "rrelu",
    "Unfold": "unfold",
}
# Functions of torchvision.ops, measured with torchvision 0.24.
VISION = words("batched_nms deform_conv2d nms ps_roi_align ps_roi_pool roi_align roi_pool")
# Modules of torchvision.ops, by the function that they call.
VISION_MODULES = {
    "DeformConv2d": "deform_conv2d",
    "MultiScaleRoIAlign": "roi_align",
    "PSRoIAlign": "ps_roi_align",
    "PSRoIPool": "ps_roi_pool",
    "RoIAlign": "roi_align",
    "RoIPool": "roi_pool",
}
# Reparametrizations that compute the weight so at every call of the layer.
WEIGHT_NORMS = {
    "torch.nn.utils.weight_norm": "weight_norm",
    "torch.nn.utils.parametrizations.weight_norm": "weight_norm",
}

INTERPOLATE = ("input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")
UPSAMPLE = ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")
# Modes of interpolation that run on the CPU whatever the rank of the input.
MODES = words("bicubic linear nearest-exact trilinear")

# Distributions of torch whose draws run on the CPU, counted by `torch_xla.debug.metrics`.
DISTRIBUTIONS = words(
    "Beta Binomial Cauchy Chi2 Dirichlet FisherSnedecor Gamma InverseGamma LKJCholesky NegativeBinomial "
    "Poisson StudentT VonMises Wishart"
)
