"""Functions that draw random numbers on the device of their tensors, and functions that seed torch."""

from __future__ import annotations

import re

# Functions by which libraries seed torch, by the last part of their names: none of them seeds XLA.
SEEDERS = frozenset(
    {
        "fix_seed",
        "init_seeds",
        "manual_seed",
        "prepare_environment",
        "random_seed",
        "seed_all",
        "seed_all_rng",
        "seed_everything",
        "set_determinism",
        "set_global_seed",
        "set_global_seeds",
        "set_random_seed",
        "set_seed",
        "set_torch_seed",
    }
)
# Such functions with a name that says too little.
SEEDING_FUNCTIONS = frozenset({"delu.random.seed"})
# Methods that no other kind of object has.
SEEDING_METHODS = frozenset({"seed_everything"})
# Packages whose functions with these names seed something else, or XLA too (Accelerate).
OTHER_SEEDERS = frozenset(
    {
        "accelerate",
        "cupy",
        "jax",
        "keras",
        "numpy",
        "random",
        "shims",
        "tensorflow",
        "torch",
        "torch_xla",
    }
)
# These seed torch's generators with a random seed: that of the host, and with it those of the GPUs.
BY_CHANCE = frozenset({"torch.seed", "torch.random.seed"})

# Modules and functions that drop or disturb at random, unless their probability is written as 0.
DROPOUTS = frozenset(
    {
        "AlphaDropout",
        "DropBlock2d",
        "DropBlock3d",
        "DropPath",
        "Dropout",
        "Dropout1d",
        "Dropout2d",
        "Dropout3d",
        "FeatureAlphaDropout",
        "RReLU",
        "StochasticDepth",
        "alpha_dropout",
        "drop_path",
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "feature_alpha_dropout",
        "gumbel_softmax",
        "rrelu",
        "stochastic_depth",
    }
)
# Modules of torch that drop by default, and those that drop if a keyword says so.
DROP_BY_DEFAULT = frozenset(
    {
        "Transformer",
        "TransformerDecoderLayer",
        "TransformerEncoderLayer",
    }
)
# Number of arguments before the probability of functions that drop only if one is given.
DROPOUT_PLACES = {
    "GRU": 5,
    "LSTM": 5,
    "MultiheadAttention": 2,
    "RNN": 5,
    "scaled_dot_product_attention": 4,
}
PROBABILITIES = ("dropout", "dropout_p", "drop_rate", "drop_path_rate", "p")
MAKERS = frozenset({"normal", "rand", "randint", "randn", "randperm"})
SAMPLERS = frozenset({"bernoulli", "multinomial", "poisson", "rsample"})
# Functions of `random` and `numpy.random`, and methods of their generators, that draw on the host.
HOST_DRAWS = frozenset(
    {
        "betavariate",
        "beta",
        "binomial",
        "choice",
        "choices",
        "expovariate",
        "exponential",
        "gauss",
        "getrandbits",
        "integers",
        "lognormvariate",
        "normal",
        "normalvariate",
        "permutation",
        "poisson",
        "rand",
        "randint",
        "randn",
        "random",
        "random_integers",
        "random_sample",
        "randrange",
        "sample",
        "standard_normal",
        "triangular",
        "uniform",
    }
)
# Functions of numpy.random that draw nothing, and functions that make a host generator.
NUMPY_OTHERS = frozenset(
    {"Generator", "RandomState", "SeedSequence", "default_rng", "get_state", "seed", "set_state"}
)
GENERATORS = frozenset(
    {
        "numpy.random.Generator",
        "numpy.random.RandomState",
        "numpy.random.default_rng",
        "random.Random",
        "random.SystemRandom",
    }
)
# Functions that return the state of a generator, in host memory: our edits keep that of a GPU there too.
HOST_STATES = frozenset(
    {
        "numpy.random.get_state",
        "random.getstate",
        "torch.cuda.get_rng_state",
        "torch.cuda.get_rng_state_all",
        "torch.cuda.random.get_rng_state",
        "torch.cuda.random.get_rng_state_all",
        "torch.get_rng_state",
        "torch.random.get_rng_state",
        "torch_xla.core.xla_model.get_rng_state",
    }
)
# Methods that only distributions of scipy.stats have, and that draw on the host.
DISTRIBUTION_DRAWS = frozenset({"rvs"})
# Functions whose result differs in every process.
OF_ONE_PROCESS = frozenset(
    {
        "os.getpid",
        "os.urandom",
        "secrets.choice",
        "secrets.randbelow",
        "secrets.randbits",
        "threading.get_ident",
        "uuid.uuid1",
        "uuid.uuid4",
    }
)
# Clocks: replicas read them at different moments.
CLOCKS = frozenset(
    {
        "datetime.datetime.now",
        "datetime.datetime.utcnow",
        "time.monotonic",
        "time.monotonic_ns",
        "time.perf_counter",
        "time.perf_counter_ns",
        "time.process_time",
        "time.time",
        "time.time_ns",
    }
)
# Functions that shuffle a collection, or choose from it.
ORDERS = frozenset(
    {
        "numpy.random.choice",
        "numpy.random.permutation",
        "numpy.random.shuffle",
        "random.choice",
        "random.choices",
        "random.sample",
        "random.shuffle",
    }
)
# Functions that make a tensor which such a method then fills.
EMPTIES = frozenset(
    {
        *(
            "empty",
            "empty_like",
            "full_like",
            "new",
            "new_empty",
            "new_full",
            "new_ones",
            "new_zeros",
        ),
        *("ones_like", "zeros", "zeros_like"),
    }
)
# Models of libraries that drop at random in training: by the beginnings of their names.
LIBRARY_MODELS = (
    "diffusers.",
    "timm.create_model",
    "timm.models.create_model",
    "torchvision.models.alexnet",
    "torchvision.models.convnext",
    "torchvision.models.efficientnet",
    "torchvision.models.inception",
    "torchvision.models.googlenet",
    "torchvision.models.maxvit",
    "torchvision.models.mnasnet",
    "torchvision.models.mobilenet",
    "torchvision.models.squeezenet",
    "torchvision.models.swin",
    "torchvision.models.vgg",
)
# Transforms of libraries that draw on the host how to cut or what to do, by the functions that make them.
# (MixUp of torchvision draws a factor alone, which is data to the graph; so does timm's without CutMix.)
HOST_TRANSFORMS = re.compile(
    r"timm\.data\.(?:mixup\.)?(?:Mixup|RandomErasing)|timm\.data\.random_erasing\.RandomErasing"
    r"|torchvision\.transforms\.(?:v2\.|transforms\.)?(?:AugMix|AutoAugment|ColorJitter|CutMix|RandAugment"
    r"|Random\w+|TrivialAugmentWide|ScaleJitter)"
)
# Classes that apply transforms one after the other.
COMPOSED = re.compile(
    r"torchvision\.transforms\.(?:v2\.|transforms\.)?Compose|torch\.nn\.Sequential"
)
