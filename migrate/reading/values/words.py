"""What the names of torch, numpy and Python say about the value of an expression."""

from __future__ import annotations

import re


def words(text: str) -> frozenset[str]:
    """Return the words of `text`."""
    return frozenset(text.split())


# Methods and attributes that say something about a tensor and are plain Python values.
DESCRIBES = words(
    "shape dtype device ndim is_cuda is_leaf requires_grad layout itemsize nbytes is_sparse is_quantized "
    "name training grad_fn names"
)
# Methods that give a value of the host, or a tensor there.
TO_HOST = words(
    "item tolist numpy cpu size dim numel stride element_size get_device is_contiguous is_floating_point "
    "nelement ndimension storage_offset data_ptr type is_complex keys __len__ is_shared is_pinned"
)
READS = frozenset({"item", "tolist"})
SAME = frozenset({"data", "grad", "T", "mT", "H", "real", "imag"})

# What only a tensor has, not an array of numpy.
ONLY_TENSORS = words(
    "unsqueeze permute contiguous detach masked_fill masked_fill_ backward new_zeros new_ones new_full "
    "new_tensor new_empty index_select expand expand_as type_as log_softmax masked_select scatter_ scatter "
    "index_add_ bmm narrow unbind zero_ add_ mul_ sub_ div_ clamp_ fill_ numel tril triu logsumexp view_as "
    "data_ptr"
)
IN_A_FORWARD = ONLY_TENSORS | words(
    "shape dtype view reshape transpose mean sum max min chunk split squeeze clone to size dim float long "
    "half cpu device"
)

# torch functions that make a tensor, on the CPU where no device is named.
FACTORIES = words(
    "arange as_tensor empty eye from_numpy frombuffer full linspace logspace ones rand randint randn "
    "randperm tensor zeros empty_strided tril_indices triu_indices normal complex load hann_window "
    "hamming_window HalfTensor FloatTensor LongTensor IntTensor ByteTensor BoolTensor DoubleTensor "
    "Tensor asarray"
)
# torch functions whose result is no tensor.
PLAIN = words(
    "device dtype finfo iinfo is_tensor is_floating_point is_complex numel Size get_default_dtype "
    "get_rng_state Generator is_grad_enabled no_grad enable_grad inference_mode set_grad_enabled "
    "manual_seed seed initial_seed save compile jit autocast get_num_threads typename promote_types "
    "result_type can_cast is_storage are_deterministic_algorithms_enabled broadcast_shapes get_device "
    "allclose equal is_inference_mode_enabled"
)
# Parts of torch whose functions return no tensors.
PLAIN_MODULES = (
    "torch.cuda",
    "torch.distributed",
    "torch.utils",
    "torch.backends",
    "torch.multiprocessing",
    "torch.optim",
    "torch.profiler",
    "torch.version",
    "torch.hub",
    "torch.jit",
    "torch.onnx",
    "torch.random",
    "torch.amp",
    "torch.autograd.profiler",
    "torch.fx",
    "torch._dynamo",
    "torch._C",
    "torch.overrides",
    "torch.export",
    "torch.compiler",
)
HOST_ROOTS = words(
    "numpy math random os sys time json re pathlib itertools functools collections logging argparse "
    "scipy pandas PIL cv2 datetime copy glob shutil subprocess typing string operator statistics"
)
HOST_BUILTINS = words(
    "int float bool str len range repr isinstance hasattr callable type id hash ord chr open input print "
    "round format issubclass"
)
FIRST_ARGUMENT = words("sum max min abs list tuple sorted reversed iter next zip map filter set")

# Modules by the names that scripts give them.
MODEL = re.compile(
    r"(^|_)(model|net|network|criterion|loss_fn|loss_func|loss_function|discriminator|generator|backbone|"
    r"student|teacher|netg|netd|classifier)(_without_ddp|_ema)?\d*$",
    re.IGNORECASE,
)
MODULE_METHODS = words("eval train to cuda cpu half float double bfloat16 apply requires_grad_")
MODULE_TENSORS = words("parameters buffers named_parameters named_buffers")
MODEL_MAKERS = ("torchvision.models.", "timm.create_model", "timm.models.create_model")

LOADER = re.compile(
    r"(loader|dataset|batches|prefetcher|data_iter|dataiter|_iter)s?\d*$", re.IGNORECASE
)
MASK = re.compile(r"(^|_)(mask|masks|keep|valid|is_\w+|ignore|selected)(_\w+)?$", re.IGNORECASE)
BOOLEAN_METHODS = words(
    "bool eq ne gt ge lt le isnan isinf isfinite logical_and logical_or logical_not logical_xor "
    "greater less not_equal"
)
# Annotations of plain values.
PLAIN_ANNOTATION = re.compile(
    r"^(Optional\[|Union\[)?(typing\.)?(int|float|bool|str|bytes|dict|Dict|Callable|Sequence\[int|"
    r"List\[int|list\[int|Tuple\[int|tuple\[int|torch\.dtype|torch\.device|torch\.Size|np\.|numpy\.|"
    r"Path|Any\b|argparse)"
)
# Parameters of a forward that are no tensors, by their names.
NUMBER = re.compile(
    r"^(self|cls|n|k|h|w|b|c|t|d|i|j|height|width|size|shape|scale|alpha|beta|gamma|eps|ratio|temperature|"
    r"length|start_pos|mode|train|training|epoch|step|iteration|iters|layer|level|stage|name|config|cfg|"
    r"args|kwargs|state|cache|meta|info|opt|options|fn|func|device|dtype|ctx|steps|resolution|"
    r"(num|n|max|min|use|return|is|has|with)_\w+|\w+_(size|len|length|idx|index|dim|num|ratio|scale|"
    r"type|name|fn|shape|shapes|hw|args|kwargs|list|dict|info|metas|step|steps|id|p|prob|rate))$",
    re.IGNORECASE,
)


DDP = frozenset(
    {
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.parallel.distributed.DistributedDataParallel",
    }
)
