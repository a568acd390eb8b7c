"""Operations that torch_xla runs on the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue import cpu_operators as cpu
from migrate.catalogue.prescan import spelled
from migrate.catalogue.words import MODULE_METHODS
from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.steps.unended import is_gradient_free
from migrate.syntax.tree import bind, code, keyword, string_value

# Adaptive poolings, by the kind; that of the maximum in 3-D always runs on the CPU.
ADAPTIVE = {f"AdaptiveAvgPool{rank}d": "average" for rank in (1, 2, 3)}
ADAPTIVE |= {f"AdaptiveMaxPool{rank}d": "max" for rank in (1, 2)}
POOLS = {f"adaptive_avg_pool{rank}d": "average" for rank in (1, 2, 3)}
POOLS |= {f"adaptive_max_pool{rank}d": "max" for rank in (1, 2)}
POOLING = ("adaptive average", "adaptive max", "area interpolation to")
# What to write instead of an operator, for its message.
_INSTEAD = {"glu": "; write a, b = x.chunk(2, dim) and a * b.sigmoid()"}
NO_MULTIPLE = "runs on the CPU where a size of the input is no multiple of the output's"
BY_GENERATOR = (
    "by a generator, which is one of the host on XLA, runs on the CPU: the graph is cut and the inputs are "
    "fetched; without one it is drawn on the device, by the seed of torch_xla.manual_seed"
)
ON_THE_HOST = "draw before the step, of parameters on the host, and move what is drawn"
MODULE_PACKAGES = ("torch.nn", "torch.nn.modules")
VISION = "torchvision.ops"
KORNIA = "kornia.augmentation"
SEQUENTIAL = ("torch.nn.Sequential", "torch.nn.ModuleList")
# Makes its result of numbers.
WITHOUT_INPUT = frozenset({"tril_indices", "triu_indices"})
RANKS = ("1d", "2d", "3d")


class CpuFallback(Hazard):
    """An operation inside the step runs on the CPU.

    **Why.** torch_xla 2.9 has no lowering of some operators: `bincount`, `median`, `nansum`, `searchsorted`,
    `multinomial` of several samples without replacement or with a generator of the host; `unfold` and `fold`,
    `ctc_loss`, `grid_sample`, `huber_loss`, `embedding_bag`, `weight_norm`, `lgamma`; `torch.fft`, most of
    `torch.linalg`; `nms`, `roi_align` and `deform_conv2d` of `torchvision.ops`; and others. It cuts the
    graph, fetches the inputs, computes on the CPU and sends the result back, and does so again in the
    backward pass. For `glu` and `cdist` only the gradient runs on the CPU.

    `interpolate` has a lowering only for 2-D `nearest` and `bilinear` (without `antialias=True`). An adaptive
    pooling has one only if the output size divides the input size; `interpolate(mode="area")` is an adaptive
    pooling. `one_hot` without `num_classes` reads the greatest class. A `multinomial` in a loop that
    samples is reported too, if a caller passes it a generator. `Beta`, `Gamma`, `Dirichlet`, `Poisson`,
    `StudentT` and other distributions draw on the CPU; `Normal`, `Categorical` and `Laplace` do not.
    Geometric transforms of `kornia.augmentation` read the device several times in a call, and compute a part
    on the CPU; with a crop each call compiles anew. `RandomHorizontalFlip` does neither.

    **What to do.** `one_hot`: pass `num_classes`. `interpolate`: `mode="bilinear"`; for 3-D `nearest` by a
    whole factor, `repeat_interleave` each axis. `multinomial`: one sample, or
    replacement; or add Gumbel noise to the logits and take `argmax`, or `topk`. `bincount`:
    `zeros(n).scatter_add(0, index, ones)`. `glu`: `a, b = x.chunk(2, dim)` and `a * b.sigmoid()`.
    `huber_loss`: `smooth_l1_loss` with `beta=delta`, times delta. `unfold`: a convolution, or stacked
    slices. Otherwise compute it in the data loader, or after the step.

    Source: torch_xla 2.9, kornia 0.9, counters `aten::…` of `torch_xla.debug.metrics`, measured.
    """

    code = "XLA111"
    name = "cpu-fallback"
    severity = Severity.WARNING
    is_mentioned = True
    nodes = (cst.Call,)
    words = spelled(
        cpu.OPERATORS
        | cpu.TORCH_FUNCTIONS
        | cpu.FUNCTIONAL
        | cpu.LINALG
        | cpu.SPECIAL
        | cpu.VISION
        | cpu.DISTRIBUTIONS
        | cpu.KORNIA
        | {
            *cpu.MODULES,
            *cpu.VISION_MODULES,
            "weight_norm",
            "interpolate",
            "Upsample",
            "adaptive_avg_pool",
            "adaptive_max_pool",
            "AdaptiveAvgPool",
            "AdaptiveMaxPool",
        }
        | {"fft", "one_hot", *(name.rpartition(".")[2] for name in cpu.WITH_ARGUMENT)}
    )
    examples = (
        example(
            """
            import torch


            class Sampler(torch.nn.Module):
                def forward(self, logits):
                    index = torch.multinomial(logits.softmax(-1), 4)  # XLA111
                    return index.bincount()  # XLA111
            """
        ),
        example(
            """
            import torch
            import torch.nn.functional as F


            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.ctc = torch.nn.CTCLoss(blank=0)

                def forward(self, x, grid, target, lengths):
                    x = F.grid_sample(x, grid)  # XLA111
                    x = F.interpolate(x, size=32, mode="bicubic")  # XLA111
                    x = torch.fft.rfft(x).real  # XLA111
                    x = x + torch.linalg.qr(x[0, 0]).Q.sum()  # XLA111
                    x = x.round(decimals=2) + F.rrelu(x) + x.round()  # XLA111 # XLA111
                    x = x + F.one_hot(target).sum()  # XLA111
                    return self.ctc(x, target, lengths, lengths)  # XLA111
            """
        ),
        example(
            """
            import torch
            import torch.nn.functional as F


            class Net(torch.nn.Module):
                def forward(self, x, target):
                    x = F.interpolate(x, size=32, mode="bilinear")
                    x = x + torch.linalg.svdvals(x[0, 0]).sum() + torch.linalg.vector_norm(x)
                    return x + F.one_hot(target, 10).sum() + F.one_hot(target, num_classes=4).sum()


            def frequencies(rows):
                return torch.fft.rfft(rows), F.one_hot(rows)
            """
        ),
        example(
            """
            import numpy as np
            import torch


            def inverse(matrix):
                if isinstance(matrix, np.ndarray):
                    return np.linalg.inv(matrix)
                return torch.linalg.inv(matrix)  # XLA111


            def middle(points, scale=1):
                ramp = torch.nanmedian(torch.arange(3))
                return torch.nanmedian(points, dim=1).values + ramp * scale  # XLA111


            class Loss(torch.nn.Module):
                def points(self, view, *more):
                    return middle(inverse(view["pose"]) @ view["points"])

                def forward(self, *args, **options):
                    return self.points(*args, **options)
            """
        ),
        example(
            """
            import torch
            import torch.nn.functional as F
            from torch import nn


            class Net(nn.Module):
                def __init__(self, mode="trilinear"):
                    super().__init__()
                    self.mode = mode
                    self.conv = nn.Conv3d(2, 2, 3)
                    self.flat = nn.Conv2d(2, 2, 3)
                    self.up = nn.Upsample(scale_factor=2, mode="trilinear")
                    self.gates = nn.Sequential(nn.Linear(4, 4), nn.GLU())  # XLA111
                    self.normed = nn.utils.weight_norm(nn.Linear(4, 4))  # XLA111

                def forward(self, x):
                    x = F.unfold(x, 3).sum() + F.fold(x, 4, 2).sum()  # XLA111 # XLA111
                    v = self.up(self.conv(x))  # XLA111
                    v = F.interpolate(v, scale_factor=(1, 2, 2))  # XLA111
                    v = F.interpolate(v, None, 2, self.mode)  # XLA111
                    v = F.interpolate(v, size=4, mode="bilinear", antialias=True)  # XLA111
                    w = self.conv(x)
                    w = F.interpolate(w, scale_factor=2)  # XLA111
                    u = F.interpolate(self.flat(x), scale_factor=2)
                    u = F.adaptive_avg_pool2d(u, 1) + F.adaptive_avg_pool2d(u, (1, None))
                    u = F.adaptive_avg_pool2d(u, 3)  # XLA111 info
                    u = F.interpolate(u, size=(3, 1), mode="area")  # XLA111 info
                    u = F.interpolate(u, scale_factor=1 / 2, mode="area")  # XLA111 info
                    u = F.interpolate(u, None, 2, "area")  # XLA111
                    u = F.interpolate(u, size=1, mode="area")
                    return self.gates(self.normed(u)).nanmedian() + x.unfold(1, 2, 2).sum()  # XLA111 # XLA111
            """
        ),
        example(
            """
            import torch
            from torch import nn
            from torchvision.ops import DeformConv2d, RoIAlign, box_iou, nms
            from torchvision.ops.deform_conv import deform_conv2d


            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.bend = DeformConv2d(4, 4, 3)
                    self.crop = RoIAlign(2, 1.0, 2)
                    self.weight = nn.Parameter(torch.ones(4, 4, 3, 3))

                def forward(self, x, offset, boxes, scores):
                    x = self.bend(x, offset)  # XLA111
                    x = deform_conv2d(x, offset, self.weight)  # XLA111
                    kept = nms(boxes, scores, 0.5)  # XLA111
                    return self.crop(x, boxes[kept]) + box_iou(boxes, boxes).sum()  # XLA111
            """
        ),
        example(
            """
            import torch
            from torch.distributions import Beta, Normal


            class Flow(torch.nn.Module):
                def forward(self, x):
                    one = torch.ones(x.shape[0], device=x.device)
                    t = Beta(one * 1.5, one).sample()  # XLA111
                    noise = torch.distributions.Gamma(one, one)
                    x = x + noise.rsample()[:, None] + Normal(x, 1.0).sample()  # XLA111
                    return x * t[:, None] * Beta(1.5, 1.0).sample().to(x.device)
            """
        ),
        example(
            """
            import torch


            class Choice:
                def __init__(self, logits):
                    self.logits = logits

                def mode(self):
                    return self.logits.argmax(-1)


            class Head(torch.nn.Linear):
                def forward(self, x):
                    return Choice(super().forward(x))


            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.head = Head(4, 4)

                def forward(self, x):
                    choice = self.head(x)
                    x = x + torch.svd_lowrank(x)[0].sum()  # XLA111
                    return self.head(x).mode() + choice.mode() + x.mode() + (x + 1).mode()  # XLA111 # XLA111
            """
        ),
        example(
            """
            import numpy as np
            import torch
            from torch import nn
            from layers import GLU, unfold


            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.gates, self.pool = nn.Sequential(GLU()), nn.AdaptiveAvgPool2d(1)
                    self.up = nn.Upsample(scale_factor=2, mode="bilinear")

                def forward(self, x, mode):
                    return self.gates(self.pool(self.up(unfold(x))).mean(1)), torch.tril_indices(3, 3)


            def weights(labels):
                return np.bincount(labels), torch.multinomial(torch.ones(10), 2)
            """
        ),
        example(
            """
            import torch
            from kornia import augmentation as K


            class Batches:
                def __init__(self, size):
                    self.bend = K.AugmentationSequential(
                        K.RandomHorizontalFlip(), K.RandomAffine(degrees=5.0), data_keys=["input"]
                    ).cuda()
                    self.flip = K.RandomHorizontalFlip().cuda()
                    self.crop = torch.nn.Sequential(K.RandomResizedCrop((8, 8)))

                def augment(self, images):
                    images = self.flip(images.cuda())
                    return self.bend(images) + self.crop(images)  # XLA111 # XLA111


            def train(model, loader, optimizer, batches: Batches):
                for x, y in loader:
                    loss = model(batches.augment(x), y.cuda())
                    loss.backward()
                    optimizer.step()


            class Rows(torch.utils.data.Dataset):
                def __init__(self, images):
                    self.images = images
                    self.bend = K.RandomAffine(degrees=5.0)

                def __getitem__(self, index):
                    return self.bend(self.images[index])
            """
        ),
    )
    mended = example(
        """
        import torch


        class Sampler(torch.nn.Module):
            def forward(self, logits):
                noise = -torch.log(-torch.log(torch.rand_like(logits)))
                index = (logits + noise).argmax(-1)
                return torch.nn.functional.one_hot(index, logits.shape[-1]).sum(0)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call inside a step, or one layer that is built into a model."""
        assert isinstance(node, cst.Call)
        if not facts.steps.inside(node):
            if facts.context.place(node) in facts.context.calls.host_draws:
                if facts.values.kind(_drawn_from(node, facts)) is not Kind.HOST:
                    yield self.hit(node, f"multinomial {BY_GENERATOR}")
                return
            operator = _layer(node, facts)
            if operator.startswith(POOLING):
                yield self.hit(node, f"{operator} {NO_MULTIPLE}", Severity.INFO)
            elif operator:
                message = (
                    f"{operator} runs on the CPU: at every call of this layer the graph is cut"
                )
                yield self.hit(node, message)
            return
        if drawn := _distribution(node, facts):
            what = f"{drawn} draws on the CPU: the graph is cut and the parameters are fetched"
            yield self.hit(node, f"{what}; {ON_THE_HOST}")
            return
        if transform := _kornia(node, facts):
            what = (
                f"kornia's {transform} reads the device and computes a part on the CPU in each call"
            )
            yield self.hit(node, f"{what}: the graph is cut; augment in the data loader's workers")
            return
        name = facts.names.of(node.func) or ""
        if name:
            operator = _function(name, node, facts)
            used = any(facts.values.is_tensor(arg.value) for arg in node.args)
            used = used or _is_of_the_step(node, facts)
            used = used or (operator in WITHOUT_INPUT and keyword(node, "device") is not None)
        else:
            operator, used = _method(node, facts)
        if not operator or not used or (operator == "multinomial" and _draws_there(node, not name)):
            return
        severity = None
        if operator == "one_hot":
            message = "one_hot without num_classes reads the greatest class: the graph is cut; num_classes=…"
        elif operator.startswith(POOLING):
            message = f"{operator} {NO_MULTIPLE}"
            severity = Severity.INFO
        elif operator in cpu.ONLY_BACKWARD:
            if is_gradient_free(node, facts):
                return
            message = f"the gradient of {operator} runs on the CPU: the backward pass is cut there"
            message += _INSTEAD.get(operator, "")
        else:
            message = f"{operator} runs on the CPU: the graph is cut and the inputs are fetched"
        yield self.hit(node, message, severity)


def _kornia(call: cst.Call, facts: Facts) -> str:
    """Return the transform of kornia that `call` runs on the device: `self.augment(images)`, if any."""
    func, images = call.func, next(iter(call.args), None)
    if images is None or not isinstance(func, cst.Name | cst.Attribute) or facts.names.of(func):
        return ""
    if not (facts.values.is_tensor(images.value) or _is_of_the_step(call, facts)):
        return ""
    return next(_transforms(func, facts), "")


def _transforms(node: cst.BaseExpression, facts: Facts, depth: int = 4) -> Iterator[str]:
    """Yield the transforms of kornia that `node` holds and that compute on the CPU."""
    if not depth:
        return
    if isinstance(node, cst.Call):
        package, _, last = (facts.names.of(node.func) or "").rpartition(".")
        if package.startswith(KORNIA) and last in cpu.KORNIA:
            yield last
        moved = method(node) in MODULE_METHODS
        parts = [receiver(node)] if moved else [arg.value for arg in node.args]
    elif isinstance(node, cst.List | cst.Tuple):
        parts = [element.value for element in node.elements]
    elif isinstance(node, cst.Name):
        values = [assignment.value for assignment in facts.bindings.reaching(node)]
        parts = [value for value in values if value is not None]
    else:
        parts = facts.values.given_to(node) if isinstance(node, cst.Attribute) else []
    for part in parts:
        if part is not None:
            yield from _transforms(part, facts, depth - 1)


def _distribution(call: cst.Call, facts: Facts) -> str:
    """Return the distribution of torch that `call` draws from on the CPU, `Beta`; nothing for other calls."""
    if method(call) not in ("rsample", "sample"):
        return ""
    origin: cst.CSTNode | None = receiver(call)
    if isinstance(origin, cst.Name):
        binding = facts.bindings.nearest(origin)
        origin = binding.value if binding is not None else None
    if not isinstance(origin, cst.Call):
        return ""
    package, _, last = (facts.names.of(origin.func) or "").rpartition(".")
    if not package.startswith("torch.distributions") or last not in cpu.DISTRIBUTIONS:
        return ""
    return last if any(facts.values.is_tensor(arg.value) for arg in origin.args) else ""


def _drawn_from(call: cst.Call, facts: Facts) -> cst.BaseExpression | None:
    """Return the probabilities that `multinomial` draws from."""
    if facts.names.of(call.func) is None:
        return receiver(call)
    argument = keyword(call, "input") or next(iter(call.args), None)
    return argument.value if argument is not None else None


def _draws_there(call: cst.Call, is_method: bool) -> bool:
    """Whether a `multinomial` runs on the device: of one sample, or with replacement, by no generator."""
    names = ("input", "num_samples", "replacement")[is_method:]
    bound = bind(call, names) or {}
    if keyword(call, "generator") is not None or len(call.args) > len(names):
        return False
    arguments = {name: code(arg.value) for name, arg in bound.items()}
    return arguments.get("num_samples") == "1" or arguments.get("replacement") == "True"


def _is_of_the_step(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` gets a value of the step on an unknown device, and no new tensor."""
    value = call.args[0].value if call.args else None
    while isinstance(value, cst.Subscript | cst.Attribute):
        value = value.value
    if not isinstance(value, cst.Name) or value.value == "self":
        return False
    if facts.values.kind(call.args[0].value) is not Kind.UNKNOWN:
        return False
    return facts.bindings.parameter(value) is not None


def _function(name: str, call: cst.Call, facts: Facts) -> str:
    """Return what a call of the function `name` runs on the CPU. Nothing if it runs on the device."""
    package, _, last = name.rpartition(".")
    if name in cpu.WITH_ARGUMENT:
        return _with_argument(name, call)
    if package == "torch":
        return last if last in cpu.TENSOR_OPERATORS | cpu.TORCH_FUNCTIONS else ""
    if package == "torch.nn.functional":
        if last == "one_hot":
            return last if len(call.args) == 1 else ""
        if last in ("interpolate", "upsample"):
            return _interpolation(call, cpu.INTERPOLATE, call, facts)
        if last in POOLS:
            return _pooling(call, 1, POOLS[last], facts)
        return last if last in cpu.FUNCTIONAL else ""
    if package == "torch.linalg" and last in cpu.LINALG:
        return name
    if package == "torch.special" and last in cpu.SPECIAL:
        return name
    if package.startswith(VISION) and last in cpu.VISION:
        return f"torchvision.ops.{last}"
    is_transform = package == "torch.fft" and "fft" in last and last[-4:] not in ("freq", "hift")
    return name if is_transform else ""


def _with_argument(name: str, call: cst.Call) -> str:
    """Return the function `name` if `call` gives it an argument with which it runs on the CPU, and which."""
    argument_name = next(
        (
            argument_name
            for argument_name in sorted(cpu.WITH_ARGUMENT[name])
            if keyword(call, argument_name)
        ),
        "",
    )
    return f"{name.rpartition('.')[2]} with {argument_name}=" if argument_name else ""


def _method(call: cst.Call, facts: Facts) -> tuple[str, bool]:
    """Return what a method, or a module that the script keeps, runs on the CPU, and whether of a tensor."""
    for layer in _made(call.func, facts):
        operator = _module(layer, call, facts)
        if operator:
            return operator, any(facts.values.is_tensor(arg.value) for arg in call.args)
    last = method(call)
    if f"torch.{last}" in cpu.WITH_ARGUMENT:
        return _with_argument(f"torch.{last}", call), facts.values.is_tensor(receiver(call))
    if last in cpu.OPERATORS and not _is_own(call, facts):
        return last, facts.values.is_tensor(receiver(call))
    return "", False


def _is_own(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` may be a method of the project's own class: `head(x).mode()` of a distribution.

    What a module returns is a tensor only if nothing else is known.
    """
    if method(call) not in facts.context.calls.own_operators:
        return False
    origin: cst.CSTNode | None = receiver(call)
    if isinstance(origin, cst.Name):
        binding = facts.bindings.nearest(origin)
        origin = binding.value if binding is not None else None
    return isinstance(origin, cst.Call) and not facts.names.of(origin.func)


def _made(node: cst.BaseExpression, facts: Facts) -> list[cst.Call]:
    """Return the calls that make what the script keeps under the name or attribute `node`."""
    if not isinstance(node, cst.Name | cst.Attribute):
        return []
    return [value for value in facts.values.given_to(node) if isinstance(value, cst.Call)]


def _module(layer: cst.Call, call: cst.Call | None, facts: Facts) -> str:
    """Return what the module that `layer` makes runs on the CPU when `call` calls it."""
    package, _, kind = (facts.names.of(layer.func) or "").rpartition(".")
    if package.startswith(VISION) and kind in cpu.VISION_MODULES:
        return f"torchvision.ops.{cpu.VISION_MODULES[kind]}"
    if package not in MODULE_PACKAGES:
        return ""
    if kind == "Upsample":
        return _interpolation(layer, cpu.UPSAMPLE, call, facts)
    if kind in ADAPTIVE:
        return _pooling(layer, 0, ADAPTIVE[kind], facts)
    return cpu.MODULES.get(kind, "")


def _layer(node: cst.Call, facts: Facts) -> str:
    """Return what a layer runs on the CPU that no call names: a part of a Sequential, weight_norm."""
    name = facts.names.of(node.func) or ""
    if name in cpu.WEIGHT_NORMS:
        return cpu.WEIGHT_NORMS[name] if _runs_in_step(node, facts) else ""
    parent = facts.context.parent(node)
    holder = facts.context.parent(parent) if isinstance(parent, cst.Arg) else None
    if not isinstance(holder, cst.Call) or facts.names.of(holder.func) not in SEQUENTIAL:
        return ""
    operator = _module(node, None, facts)
    return operator if operator and _runs_in_step(node, facts) else ""


def _runs_in_step(node: cst.Call, facts: Facts) -> bool:
    """Whether a step runs the class around `node`; where no class is around it, a model is built there."""
    around = facts.context.class_around(node)
    if around is None:
        return True
    methods = [part for part in around.body.body if isinstance(part, cst.FunctionDef)]
    forward = [part for part in methods if part.name.value == "forward"]
    return any(facts.steps.inside(part) for f in forward for part in f.body.body)


def _interpolation(
    node: cst.Call, parameters: tuple[str, ...], call: cst.Call | None, facts: Facts
) -> str:
    """Return which interpolation `node` runs, or makes a layer of, that has no lowering."""
    smooth = keyword(node, "antialias")
    plain = [arg for arg in node.args if arg is not smooth]
    bound = bind(node.with_changes(args=plain), parameters) or {}
    modes = _texts(bound["mode"].value, facts) if "mode" in bound else {"nearest"}
    outside = sorted(modes & cpu.MODES)
    if outside:
        return f"{outside[0]} interpolation"
    if smooth is not None and code(smooth.value) != "False":
        return "interpolation with antialias=True"
    if "area" in modes:
        return _area(bound.get("size"), bound.get("scale_factor"), facts)
    if "nearest" not in modes:
        return ""
    sizes = [bound[name].value for name in ("size", "scale_factor") if name in bound]
    ranks = {rank for size in sizes for rank in [_length(size, facts)] if rank}
    if not ranks and call is not None and call.args:
        ranks = _rank(call.args[0].value, facts)
    rank = next((rank for rank in (3, 1) if rank in ranks), 0)
    return f"{rank}-D nearest interpolation" if rank else ""


def _texts(node: cst.BaseExpression, facts: Facts, depth: int = 3) -> set[str]:
    """Return the strings that `node` may be."""
    text = string_value(node)
    if text is not None:
        return {text}
    if isinstance(node, cst.IfExp):
        parts: list[cst.BaseExpression] = [node.body, node.orelse]
    elif isinstance(node, cst.Name | cst.Attribute) and depth:
        parts = facts.values.given_to(node)
    else:
        parts = []
    return {text for part in parts for text in _texts(part, facts, depth - 1)}


def _length(node: cst.BaseExpression, facts: Facts) -> int:
    """Return the number of elements of the tuple that `node` is; 0 where it is none to read."""
    values = [node]
    if isinstance(node, cst.Name | cst.Attribute):
        values = facts.values.given_to(node)
    lengths = {len(v.elements) if isinstance(v, cst.Tuple | cst.List) else 0 for v in values}
    return lengths.pop() if len(lengths) == 1 else 0


def _rank(node: cst.BaseExpression, facts: Facts, depth: int = 4) -> set[int]:
    """Return the ranks, without batch and channels, of what the layer gives that made `node`."""
    if isinstance(node, cst.Name) and depth:
        reaching = facts.bindings.reaching(node)
        values = [assignment.value for assignment in reaching if assignment.value is not None]
        return {rank for value in values for rank in _rank(value, facts, depth - 1)}
    if not isinstance(node, cst.Call):
        return set()
    kinds = [(facts.names.of(layer.func) or "") for layer in _made(node.func, facts)]
    return {
        int(kind[-2]) for kind in kinds if kind.startswith("torch.nn.") and kind.endswith(RANKS)
    }


def _area(size: cst.Arg | None, factor: cst.Arg | None, facts: Facts) -> str:
    """Return an interpolation of mode area, which is an adaptive average pooling, unless to one element."""
    if size is not None and code(size.value) != "None":
        numbers = _elements(size.value, facts)
        return "" if numbers <= {"1", "None"} else f"area interpolation to {code(size.value)}"
    if factor is None:
        return ""
    divides = all(_divides(number) for number in _elements(factor.value, facts))
    scale = f"by {code(factor.value)}"
    return f"area interpolation to a size {scale}" if divides else f"area interpolation {scale}"


def _divides(factor: str) -> bool:
    """Whether a scale of `factor`, as it is written, may give sizes that divide those of the input."""
    whole, _, part = factor.replace(" ", "").partition("/")
    try:
        scale = float(whole) / float(part or 1)
    except (ValueError, ZeroDivisionError):
        return True
    return scale > 0 and abs(1 / scale - round(1 / scale)) < 1e-6 and scale <= 1


def _elements(node: cst.BaseExpression, facts: Facts, depth: int = 4) -> set[str]:
    """Return the numbers of the size `node`, as they are written; a name's are what it is given."""
    parts: list[cst.BaseExpression] = []
    if isinstance(node, cst.Tuple | cst.List):
        parts = [element.value for element in node.elements]
    elif isinstance(node, cst.Name | cst.Attribute) and depth:
        parts = facts.values.given_to(node)
    numbers = {number for part in parts for number in _elements(part, facts, depth - 1)}
    return numbers or {code(node)}


def _pooling(node: cst.Call, position: int, kind: str, facts: Facts) -> str:
    """Return the adaptive pooling that `node` runs or makes, unless it is to one element."""
    arg = keyword(node, "output_size")
    plain = [arg for arg in node.args if arg.keyword is None]
    arg = arg or (plain[position] if len(plain) > position else None)
    if arg is None:
        return ""
    numbers = _elements(arg.value, facts)
    if all(number in ("1", "None") or not number.isdecimal() for number in numbers):
        return ""
    return f"adaptive {kind} pooling to {code(arg.value)}"
