"""Meanings of names: of torch, numpy and Python, and of the names that scripts choose.

Each list of names is here once, with the reason: names that stand for a model, an optimizer, a scaler, a
loader, an evaluation, a read, a log, a save, a wait, a device, options or the index of a replica. Rules,
hazards and analyses use these lists.
"""

from __future__ import annotations

import builtins
import re

from migrate.catalogue import torch_cuda
from migrate.catalogue.entry import names


def words(text: str) -> frozenset[str]:
    """Return the words of `text`."""
    return frozenset(text.split())


# Methods and attributes that describe a tensor and are plain Python values.
DESCRIBES = words(
    "shape dtype device ndim is_cuda is_leaf requires_grad layout itemsize nbytes is_sparse is_quantized "
    "name training grad_fn names device_mesh placements"
)
# Methods that read a tensor's values from the device: the host waits for them.
READ_METHODS = words("cpu item numpy tolist")
# Methods among them whose result is a number, or a list of numbers: no tensor is left.
READS = frozenset({"item", "tolist"})
# Methods that describe a tensor without reading its values.
DESCRIBING_METHODS = words(
    "size dim numel stride element_size get_device is_contiguous is_floating_point nelement ndimension "
    "storage_offset is_complex is_shared is_pinned is_tensor"
)
# Methods of collections that keep their arguments.
KEEPING = words("add append appendleft extend insert setdefault update")
# Methods that return a host value, or a tensor there; `x.type(…)` with an argument converts.
TO_HOST = READ_METHODS | DESCRIBING_METHODS | words("data_ptr type keys __len__")
# Calls that return a mapping, or its keys: who iterates over it gets texts.
GIVES_KEYS = words("state_dict keys OrderedDict")
# Methods of texts that tensors do not have.
TEXT_METHODS = words(
    "capitalize casefold decode encode endswith format join ljust lower lstrip removeprefix removesuffix "
    "replace rjust rstrip splitlines startswith strip title upper zfill"
)
# Python functions that read a tensor's values: each waits for the device.
CONVERSIONS = words("bool float format int repr round str")
NUMBERS = words("bool float int")
# Python functions that ask about an object, not about a tensor's values.
DESCRIBING = words("getattr hasattr id isinstance len range type")

# Attributes that only a tensor has, not a NumPy array.
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

# torch functions that make a tensor, on the CPU without a device argument; `torch.tensor(x)` of a tensor x is
# on the device of x.
MADE_ON_HOST = words(
    "arange empty empty_strided eye from_numpy frombuffer full hamming_window hann_window linspace logspace "
    "ones rand randint randn randperm tensor tril_indices triu_indices zeros BoolTensor ByteTensor "
    "DoubleTensor FloatTensor HalfTensor IntTensor LongTensor Tensor"
)
# Functions whose result is on the device of their tensors, or on the CPU for numbers.
MADE_OF_TENSORS = words("as_tensor asarray complex normal")
# Methods of a checkpoint, or of a tensor in it, whose result is on the same device.
OF_CHECKPOINTS = words(
    "get pop items values copy clone detach contiguous float half double bfloat16 long int view reshape "
    "squeeze unsqueeze permute transpose t flatten"
)
# `torch.load`, and functions of projects that call it, by the last part of the name.
LOADS = re.compile(r"(^|_)load$")
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
# Functions whose result is, or holds, their argument.
HANDING_ON = re.compile(
    r"copy\.(copy|deepcopy)|functools\.reduce|itertools\.\w+|random\.(choices?|sample)|typing\.cast"
)
# Builtins that return a number.
MAKES_NUMBER = words("bool float int len round")
HOST_BUILTINS = words(
    "int float bool str len range repr isinstance hasattr callable type id hash ord chr open input print "
    "round format issubclass"
)
BUILTINS = frozenset(dir(builtins))
FIRST_ARGUMENT = words("sum max min abs list tuple sorted reversed iter next zip map filter set")

# Names that scripts give to modules: a word for a model, after a word for its purpose (`student_net`), and
# before a word for its wrapper or a number (`model_ema`, `netD_2`).
_MODEL = (
    r"(?:\w*_)?(?:model|net|network|module|encoder|decoder|backbone|generator|discriminator|student"
    r"|teacher|classifier|critic|actor|criterion|loss_fn|loss_func|loss_function|[gd]_?net|net_?[gd]"
    r"|(?:sub|super)net)"
)
MODEL = re.compile(
    rf"{_MODEL}(?:_(?:without_ddp|ddp|dp|ema|wrapped|single|\d+))?\d*", re.IGNORECASE
)
# The same for names that are called with tensors, with any suffix: `model_engine(x)`, `net_a2b(x)`. Names of
# what makes, loads or changes a model are none of them: `load_model_from(path)`, `base.init_model()`.
_NOT_RUN = (
    "build|clone|convert|copy|count|create|export|freeze|get|init|initialize|load|make|prepare|print|register"
    "|reset|restore|resume|save|set|setup|show|unfreeze|unwrap|wrap"
)
CALLED_MODEL = re.compile(rf"(?!_*(?:{_NOT_RUN})_){_MODEL}(?:_\w*)?\d*", re.IGNORECASE)
# Methods by which a model computes, other than its forward: `model.encode_text(x)`.
COMPUTES = re.compile(
    r"(?:encode|embed|extract|forward|predict|decode)(?:_\w+)?|get_\w*(?:features?|embeddings?|logits)"
)
# Methods that only models have, whatever their names.
COMPUTES_ONLY = re.compile(
    r"encode_(?:image|text|video|audio|frame|prompt)s?|get_(?:image|text|audio|video)_features"
    r"|forward_features"
)
# Classes whose `__call__` is a part of the step: a file of settings often chooses them by their name.
LOSS_CLASS = re.compile(r"[Ll]oss(?:es)?$|[Cc]riterion$")
OPTIMIZER = re.compile(r"(?:.*_)?(?:optimizer|optim)", re.IGNORECASE)
# Classes of torch, by their qualified names.
TORCH_OPTIMIZER = re.compile(r"torch\.optim\.(?!lr_scheduler|swa_utils)(\w+\.)*[A-Z]\w*")
# Base classes of optimizers, by qualified name.
TORCH_OPTIMIZER_BASE = re.compile(r"torch\.optim\.(?!lr_scheduler|swa_utils)")
# Optimizers of other libraries, by qualified name; only used for calls with parameters.
LIBRARY_OPTIMIZER = re.compile(
    r"optim|adam|sgd|lamb|lars|lion|muon|prodigy|shampoo|soap|adafactor|adabelief|adagrad|rmsprop|sophia"
    r"|\bcame\b|ranger|radam|nadam|galore",
    re.IGNORECASE,
)
# The same, by the qualified names of classes and of functions that make them.
OPTIMIZER_CLASS = re.compile(r"optim|GradScaler|FusedAdam|FusedLAMB|FusedSGD|Optimizer")
# Names that scripts give to other objects with a method `step()`.
NOT_OPTIMIZERS = re.compile(
    "sched(?!ule_?free)|prof|env|writer|meter|warmup|progress|bar|clip|anneal|simul|game|timer|logger|tracker|sampler"
    "|dataset|stopper|sweep|decoder"
)
# Not `schedulefree`, whose optimizers need no schedule.
SCHEDULER = re.compile(r"lr_scheduler|sched(?!ule_?free)|annealing|warmup", re.IGNORECASE)
# Calls and attributes that set the learning rate.
SCHEDULE = re.compile(
    r".*(adjust|schedul|warm_?up|anneal).*|(.*_)?(lr|learning_rate)(_.*)?", re.IGNORECASE
)
# Results of external calls that are followed; every tensor would be too much.
FOLLOWED = re.compile(
    r"optim|sched|scaler|adam|lamb|deepspeed|graph|fastai|learner"
    r"|^timm\.data\.(?:\w+\.)?(?:Mixup|RandomErasing)$|^torchvision\.transforms\."
    r"|^(?:gym|gymnasium|envpool|procgen|pettingzoo|dm_env|dm_control|minigrid|brax|isaacgym)\."
    r"|^accelerate\.(?:accelerator\.)?Accelerator$|^torch\.(?:autograd\.)?profiler\.",
    re.IGNORECASE,
)
# Functions that make a profiler, whose `step` trains nothing.
PROFILER = re.compile(r"torch\.(autograd\.)?profiler\.")
# Functions that make an environment, whose `step` trains nothing, by qualified name.
ENVIRONMENT = re.compile(
    r"^(?:gym|gymnasium|envpool|procgen|pettingzoo|dm_env|dm_control|minigrid|brax|isaacgym)\."
)
# Names of gradient scalers in scripts; a call of timm's runs the backward pass and the optimizer step.
SCALER = re.compile(r"(.*_)?\w*scaler(_.*)?", re.IGNORECASE)
CALLABLE_SCALER = re.compile(r"(^|\.)(NativeScaler|ApexScaler)\w*$")
# Device work that follows an optimizer step: averages of weights, a scaler's update.
AVERAGES = re.compile(
    r".*(ema|moving_average|polyak|swa|avg_model|averaged?_model|momentum_(update|encoder)"
    r"|update_(teacher|target|momentum)|soft_update)(_.*|\d*)?|accumulate|.*scaler",
    re.IGNORECASE,
)
# Methods that return the module itself.
MODULE_METHODS = words("eval train to cuda cpu half float double bfloat16 apply requires_grad_")
# Base classes with a forward and a backward pass of their own, which keep tensors for the latter.
AUTOGRAD_FUNCTIONS = frozenset(
    {
        "torch.autograd.Function",
        "torch.autograd.function.Function",
        "torch.autograd.function.InplaceFunction",
    }
)
KEPT_TENSORS = words("saved_tensors saved_variables")
# Methods that move a module in place; a tensor stays where it is, and a new one is returned.
MOVES = words("to cuda to_empty")
# Options of `generate` of transformers, by one of which a call is of that method.
OF_GENERATION = words(
    "max_new_tokens max_length min_length do_sample num_beams top_k top_p generation_config pad_token_id "
    "eos_token_id num_return_sequences use_cache"
)
# Methods of Accelerate's and Fabric's objects: what they give of a tensor lies where the tensor does.
OVER_REPLICAS = words("gather gather_for_metrics pad_across_processes reduce all_gather all_reduce")
MODULE_TENSORS = words("parameters buffers named_parameters named_buffers")
# Functions that return a module, and base classes of modules.
MAKES_MODEL = re.compile(
    r"torchvision\.models\.[\w.]+$|timm\.(models\.)?create_model$|torch\.compile$"
    r"|torch\.nn\.(?!utils\.|init\.|Parameter$|parameter\.)(\w+\.)*[A-Z]\w*$"
)
# Class methods of libraries that make an instance of their class.
MAKES_OWN = re.compile(r"_?from_(pretrained|config)|load_from_checkpoint")
MODULE_BASE = re.compile(
    r"torch\.nn\.|torchvision\.models\.|timm\.models\.|(?!.*DataModule).*Module"
)

# Iterables of loops that yield batches.
LOADER = re.compile(
    r"(loader|dataset|batches|prefetcher|data_iter|dataiter|_iter)s?\d*$", re.IGNORECASE
)
# Functions that evaluate; and parts of the names of loaders and samplers that are not for training.
EVALUATION = re.compile(
    r"_*(run_|do_)?(eval|evaluate|evaluation|validate|validation|val|test|inference)(_.*)?",
    re.IGNORECASE,
)
# Functions and methods without source that train; and functions that get an optimizer and do not train.
HIDDEN_TRAINING = re.compile(
    r"train_?(step|batch|iter|one_|epoch)\w*|training_step\w*|optimi[sz]e(_\w+)?|run_step\w*"
    r"|fit_(batch|step)\w*"
)
TRAINS_NOTHING = re.compile(
    r"(?!.*train)((.*_)?(save|load|log|checkpoint|ckpt|resume|restore|sched|adjust|anneal|warm_?up|lr"
    r"|learning_rate|decay|eval|valid|test|print|show|wandb).*|.*(_save|schedul\w*)|append|prepare|watch"
    r"|get_\w+)",
    re.IGNORECASE,
)
# Functions that work on host data, or are no models, if only the name is known.
OF_HOST = re.compile(
    r"loss|criterion|metric|transform|token|callback|log|writer|print|save|load|read|open|parse|collate"
    r"|hook|path|plot|(^|_)(fn|func|function|key|cb|f)$",
    re.IGNORECASE,
)
# Functions that make a batch of samples, if no call of them and no loader with them is known.
COLLATES = re.compile(r"collat(e|or)", re.IGNORECASE)
# Part of a sample that is text, or a note of its origin, and no tensor.
NO_TENSORS = re.compile(
    r"name|path|file|(^|_)ids?$|idx|index|text|caption|prompt|string|sentence|meta|info|url|uri|title|key"
    r"|question|answer|raw",
    re.IGNORECASE,
)
# Parameter that is no optimizer, if only the name is known.
NO_OPTIMIZER = re.compile(
    r"args?|arguments|batch|cfg|config|criterion|data|dataset|datasets|dev|device|dir|epoch|file|gpu|h?params"
    r"|hyp|images?|inputs?|iteration|labels?|local_rank|log|logger|loss|loss_fn|metrics?|mode|name|options?"
    r"|opts|path|prefix|rank|sched|scheduler|size|split|step|tag|targets?|tokenizer|vocab|world_size|writer"
    r"|x|y|.*(_(args|cfg|config|data|dir|file|fn|id|ids|loader|loss|name|path|rank|size|step|steps))",
    re.IGNORECASE,
)
# Methods by which a copy of the weights follows the model: `ema.update()`, `average.step(model)`.
UPDATES = re.compile(r"_*(\w+_)?(update|step|accumulate|average)(_\w+)?")
OF_EVALUATION = re.compile("val|test|eval|sequential|dev_")
# Contexts without gradients.
NO_GRADIENTS = frozenset({"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad"})
# Objects that a model keeps while it generates one token after another: no training step has them.
CACHE = re.compile(r"(\w*_)?(kv_?cache|cache|past(_key_values?|_kv)?|layer_past)s?", re.IGNORECASE)
MASK = re.compile(r"(^|_)(mask|masks|keep|valid|is_\w+|ignore|selected)(_\w+)?$", re.IGNORECASE)
# Entries of a batch, and parts of a call's result, that are masks if nothing else is known of them.
ENTRY_OF_MASK = re.compile(r"(^|_)(masks?|msks?|valid)\d*(_\w+)?$", re.IGNORECASE)
BOOLEAN_METHODS = words(
    "bool eq ne gt ge lt le isnan isinf isfinite logical_and logical_or logical_not logical_xor "
    "greater less not_equal"
)
# Methods that return a mask with the same values.
SAME_VALUES = words("bool clone contiguous detach flatten ravel reshape squeeze to unsqueeze view")
# Functions of other libraries that return a tensor where their first argument is.
EINOPS = frozenset({"einops.rearrange", "einops.reduce", "einops.repeat"})
# Functions of torch that test the numbers of a tensor.
ASK_TENSORS = words(
    "all any count_nonzero eq ge gt isclose isfinite isin isinf isnan isneginf isposinf le logical_and "
    "logical_not logical_or logical_xor lt ne signbit"
)
# Those that give the least or greatest of its numbers.
EXTREMES = words("amax amin max min")
# Annotations of plain values.
PLAIN_ANNOTATION = re.compile(
    r"^(Optional\[|Union\[)?(typing\.)?(int|float|bool|str|bytes|dict|Dict|Callable|Sequence\[int|"
    r"List\[int|list\[int|Tuple\[int|tuple\[int|torch\.dtype|torch\.device|torch\.Size|np\.|numpy\.|"
    r"Path|Any\b|argparse)"
)
# Mapping whose annotation does not show its contents: a batch or settings.
OPEN_MAPPING = re.compile(
    r"(Optional\[)?(typing\.)?(dict|Dict|Mapping|MutableMapping)(\[str, ?(typing\.)?(Any|object)\])?\]?"
    r"( ?\| ?None)?"
)
# Parameters of a forward that are no tensors, by their names.
NUMBER = re.compile(
    r"^(self|cls|n|k|h|w|b|c|t|d|i|j|height|width|size|shape|scale|alpha|beta|gamma|eps|ratio|temperature|"
    r"length|start_pos|mode|train|training|epoch|step|iteration|iters|layer|level|stage|name|config|cfg|"
    r"args|kwargs|state|cache|meta|info|opt|options|fn|func|device|dtype|ctx|steps|resolution|"
    r"\w*(feature|feat|image|img|im|input|spatial)_?(shapes|sizes|h|w)|"
    r"(num|n|max|min|use|return|is|has|with)_\w+|\w+_(size|len|length|idx|index|dim|num|ratio|scale|"
    r"type|name|fn|shape|shapes|hw|args|kwargs|list|dict|info|metas|step|steps|id|p|prob|rate))$",
    re.IGNORECASE,
)


# Methods that log, of any object but a tensor: `x.log()` is arithmetic.
LOG_METHODS = re.compile(
    "add_(scalars?|histogram|images?|text|figure)|critical|debug|display|dumpkvs|error|exception|info"
    "|log|log_(dict|metrics?)|logkvs?|logkv_mean|print|set_(description|postfix)(_str)?|warn|warning"
)
# Names of meters, loggers and progress bars in scripts, also as a part of a longer name.
LOGGER = re.compile(
    r"(.*_)?(log|logger|loggers|logging|logs|wandb|writer|tensorboard|tb|[pt]?bar|tqdm|progress|meter"
    r"|meters|metric|metrics|losses|top_?[15]|tracker|recorder|stats|monitor|mlflow|callbacks)(_.*)?"
    r"|acc\d*|.*(meter|logger|writer)",
    re.IGNORECASE,
)
METER_METHODS = frozenset({"add", "add_meter", "record", "run", "set_step", "update", "write"})
LOG_FUNCTION = re.compile(r"_*(log|print|logging)(_.*)?", re.IGNORECASE)
# Methods of Python's own loggers, and of progress bars.
LOGGING_METHODS = words("critical debug error exception fatal info log warn warning")
# Functions and methods of experiment trackers that make numbers of their arguments. Lightning's `self.log`
# keeps tensors.
TRACKER_FUNCTIONS = frozenset({"wandb.log", "mlflow.log_metric", "mlflow.log_metrics"})
TRACKER_METHODS = words("add_scalar add_scalars add_histogram")
SHOWING_METHODS = words("set_description set_description_str set_postfix set_postfix_str")

# Names of loaded and saved values that hold weights.
LOADED = re.compile(
    "ckpt|checkpoint|resume|model|weight|pretrain|state|snapshot|net|opt", re.IGNORECASE
)
SAVED = re.compile(
    r"(^|_|\.)(state|states|state_dict|ckpt|checkpoint|snapshot|weights|save_dict|params)$"
)

# Functions and methods of the script that save, by name; and those of libraries.
SAVE = re.compile(r"_*(save|checkpoint)(_.*)?|.*_save", re.IGNORECASE)
TORCH_SAVES = frozenset(
    {"torch.save", "torch_xla.core.xla_model.save", "torch_xla.utils.serialization.save"}
)
SAFETENSORS_SAVES = frozenset({"safetensors.torch.save_file", "safetensors.torch.save_model"})
# Classes and functions of libraries that call torch.save themselves, each with the method of a class to
# override. (ignite's DiskSaver and Accelerate's save call xm.save where torch_xla is.)
LIBRARY_SAVERS = {
    **dict.fromkeys(
        ("timm.utils.CheckpointSaver", "timm.utils.checkpoint_saver.CheckpointSaver"), "_save"
    ),
    **dict.fromkeys(
        (
            *("fvcore.common.checkpoint.Checkpointer", "detectron2.checkpoint.Checkpointer"),
            "detectron2.checkpoint.DetectionCheckpointer",
            "detectron2.checkpoint.detection_checkpoint.DetectionCheckpointer",
        ),
        "save",
    ),
    "speechbrain.utils.checkpoints.Checkpointer": "save_checkpoint",
    **dict.fromkeys(
        (
            *("mmcv.runner.save_checkpoint", "mmcv.runner.checkpoint.save_checkpoint"),
            *("mmengine.runner.save_checkpoint", "mmengine.runner.checkpoint.save_checkpoint"),
        ),
        "",
    ),
}
# Prefixes of the names of dataset classes: files and numbers of the host.
DATASETS = "torchvision.datasets."
# Saves that wait for the values they write.
HOST_SAVES = frozenset({"torch.save", "numpy.save", "numpy.savez"})

# Functions of libraries whose own loop runs, turn after turn, the function that they are given.
SOLVERS = frozenset(
    {
        *("torchdiffeq.odeint", "torchdiffeq.odeint_adjoint", "torchdiffeq.odeint_event"),
        *("torchsde.sdeint", "torchsde.sdeint_adjoint"),
    }
)
# Functions of libraries that read the tensors which they write to a file.
WRITES_TENSORS = frozenset({"torchaudio.save", "torchvision.utils.save_image"})

# Modules whose functions have external effects (write files, log, meet others), by any name; functions and
# methods that have, on any object but a text; and functions that only ask.
ACTING_MODULES = words("dist logging mlflow shutil subprocess tdist wandb")
ACTS = words(
    "backward barrier dump exit imsave imwrite input kill load_state_dict makedirs mkdir popen quit "
    "removedirs rename replace rmdir rmtree save save_image savefig savetxt save_pretrained savez symlink "
    "system to_csv touch unlink urlretrieve write write_text write_bytes writelines writerow"
)
# Functions that read a file, by any name.
READS_FILES = re.compile(
    r"_*(im)?(open|read)(_(csv|file|image|json|parquet|text|video|bytes))?|_*load(_(image|img|audio|file|json))?"
    r"|loadtxt|imread\w*|from_file|from_pretrained|check_(call|output)|run|Popen"
)
ACTS_OR_OF_TEXT = words("replace")
ONLY_ASKS = words("get_rank get_world_size is_available is_initialized getLogger")
# Calls that end the program.
EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit", "os.abort"})
# Unknown functions that may stop the program because of their arguments.
CHECKS = re.compile(
    r"_*(abort|assert|check|die|ensure|fail|guard|raise|require|validate|verify)(_.*)?|(.*_)?(check|guard)"
    r"|(assert|check|ensure|raise|verify)[A-Z].*"
)
# Clocks: a loop that reads one measures something.
CLOCKS = frozenset({"time.time", "time.perf_counter", "time.monotonic", "timeit.default_timer"})

# Names of options in scripts: the same on every replica.
OPTIONS = words("args cfg conf config FLAGS flags hparams hps opt options opts params")
# Names of values that are the same on every replica, such as counters.
COUNTERS = re.compile(
    r"(.*_)?(epoch|epochs|step|steps|iter|iters|iteration|iterations|iter_num|batch_idx|it|i|n|freq"
    r"|every|interval|save|saving|save_\w+|no_save|checkpoint|checkpoints|ckpt|distributed|debug"
    r"|verbose|output_dir|out_dir|eval|train|last|final|start_\w+|resume\w*|\w+_(freq|every|interval))",
    re.IGNORECASE,
)
# Names of values that differ on each replica.
METRIC = re.compile(
    r".*(loss|acc|accuracy|best|metric|score|err|psnr|ssim|fid|bleu|wer|cer|map|miou|time|rand|(?<!e)val)(\d|_.*)?",
    re.IGNORECASE,
)
# Names of loop counters, and receivers of their methods.
COUNTER = re.compile(
    r"self|[ijkn]|(.*_)?(it|iter|iters|itr|iteration|idx|index|ind|step|count|counter|epoch|num|id)(_num)?",
    re.IGNORECASE,
)

# Last parts of the names of wrappers of a model for several replicas.
WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "shims.ddp")

_XM = "torch_xla.core.xla_model."
# Calls that end the graph, and nothing else.
SYNCS = frozenset({"torch_xla.sync", f"{_XM}mark_step"})
# Calls that make a loop one for torch_xla already.
STEPS = SYNCS | {"shims.step", "torch_xla.step", f"{_XM}optimizer_step"}
# Calls that wait for the device: no part of a step.
WAITS = SYNCS | names(*torch_cuda.WAITS) | {"shims.synchronize", f"{_XM}wait_device_ops"}
# Last parts of the names of calls that read values, or end the graph.
ENDING_METHODS = frozenset(
    {"item", "tolist", "cpu", "numpy", "sync", "mark_step", "rendezvous", "barrier", "synchronize"}
)
# Functions that move all tensors of a nested structure to the host.
TO_CPU = re.compile(r"(\w*_)?(to|2|on)_?(cpu|host|numpy|np)")
# Calls that run all pending operations, collectives included.
RUNS_PENDING = SYNCS | {
    f"{_XM}rendezvous",
    f"{_XM}save",
    f"{_XM}mesh_reduce",
    f"{_XM}broadcast_master_param",
}

# Set by torchrun in every process, and by the launcher that the rewrite adds.
RANKS = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"})
# Variables that SLURM, Open MPI, MVAPICH and MPICH set in every process that they start.
CLUSTER = {
    "SLURM_PROCID": "RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_NPROCS": "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE": "WORLD_SIZE",
    "MV2_COMM_WORLD_RANK": "RANK",
    "MV2_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
    "MV2_COMM_WORLD_SIZE": "WORLD_SIZE",
    "PMI_RANK": "RANK",
    "PMI_SIZE": "WORLD_SIZE",
}
# Variables among them with the index of the replica; and those with the index of the group or host.
RANK_VARIABLES = frozenset({"RANK", "LOCAL_RANK"}) | {
    name for name, same in CLUSTER.items() if same in ("RANK", "LOCAL_RANK")
}
GROUP_VARIABLES = frozenset({"GROUP_RANK", "NODE_RANK"})
# Calls that ask for the index of the replica.
ASKS_RANK = frozenset(
    {
        "shims.local_rank",
        "shims.rank",
        "torch.distributed.get_node_local_rank",
        "torch.distributed.get_rank",
        "torch_xla.runtime.global_ordinal",
        "torch_xla.runtime.local_ordinal",
    }
)
# Names under which scripts keep a device.
DEVICE_NAME = re.compile(r"(.*_)?(acc|accelerator|devices|dev(ice)?_?(type|name|str(ing)?)?)", re.I)
# Names of the GPU index in scripts: in `x.to(args.gpu)` it can only be a device.
INDEX_NAME = re.compile(
    r"((ddp_|my_)?(local_?)?rank|proc_id|local_process_index|gpu|local_gpu|gpu_to_work_on"
    r"|(gpu|device|dev|cuda)_?(id|idx|index|rank))",
    re.IGNORECASE,
)
# Names of the replica index in scripts: `rank`, `args.local_rank`, `LOCAL_RANK`, `self.gpu_id`.
RANK_NAME = re.compile(
    r"_*((local|global|node|world|ddp|dist|distributed|process|proc|worker|machine|my|cur|current"
    r"|slurm|mpi|hvd|torch|gpu|group|replica|host|this)_?)*rank(_id)?|(local_)?(process|proc)_(index|id)",
    re.IGNORECASE,
)
# Index in some group of replicas: `tp_rank`, `self.pipeline_rank`; not `lora_rank`, a size.
GROUP_RANK_NAME = re.compile(r"(?!(\w*_)?(lora|low|dora)_)\w*rank(_id)?", re.IGNORECASE)
# Index in a group that shares the data, the layers or their parts: several replicas have the same one.
PARALLEL_RANK_NAME = re.compile(
    r"(get_|\w*_)?(dp|tp|pp|cp|mp|sp|ep|data|tensor|pipeline|pipe|context|model|sequence|expert)"
    r"(_model)?(_parallel)?_rank",
    re.IGNORECASE,
)
# Index of the host, or of the replica: `args.nr`, `node_rank`, `machine`.
HOST_NAME = re.compile(r"(^|_)(nr|node|rank|machine|host|procid|nodeid)(_|$)")
# The same as RANK_NAME in a comparison; alone it says whether there is a device at all.
GPU_NAME = re.compile(r"_*(local_)?gpu(_id|_idx|_index)?", re.IGNORECASE)
# Result of a function that scripts define for it.
RANK_FUNCTION = re.compile(
    r"_*(get_)?((local|global|node|world|dist)_)*rank|(global|local)_ordinal|get_(local_)?ordinal",
    re.IGNORECASE,
)
# Whether this is the first replica.
FIRST_NAME = re.compile(
    r"_*(is_|on_)?((local|global|world)_)*(main|master|primary|chief|root)"
    r"_?(process|proc|rank|node|worker|gpu|ordinal|replica|host)"
    r"|_*is_((local|global|world)_)*(main|master|primary|chief|rank_?(0|zero)|first_rank)",
    re.IGNORECASE,
)
FIRST_DECORATOR = re.compile(
    r"(on_|only_on_)?(rank_zero|rank0|main_process|master|master_process)(_only)?"
    r"|(run_|only_)*on_(rank_?(0|zero)|main|master|chief|primary)(_(process|rank|worker))?"
    r"|(main|master|chief|primary|global_zero)(_(process|rank|worker))?_only"
)

# Functions of a script's own modules that join the process group, by name.
JOINING = words(
    "ddp_setup dist_init distributed_init init_ddp init_dist init_distributed "
    "init_distributed_device init_distributed_mode init_distributed_training init_process_group "
    "init_torch_distributed initialize_distributed setup_ddp setup_dist setup_distributed"
)
