"""The stages of a port, in order."""

from __future__ import annotations

import ast
import gc
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from converters.graph.expression import call, code
from converters.graph.ir import COMPUTE, Free, Graph, Ref, calls
from converters.graph.merging.cached import with_caches
from converters.graph.merging.merged import Both, both_modes, evaluation_alone
from converters.graph.merging.methods import (
    as_forward,
    further_methods,
    joined,
    methods_as_calls,
    own_constants,
    require_method,
)
from converters.graph.merging.options import OptionError, merged, outcome, restricted
from converters.graph.merging.recorded import Options, recorded_as_given, tensors
from converters.graph.merging.recorded import recorded as recorded_with_options
from converters.graph.merging.results import with_same_results
from converters.graph.ops.functions import functions as known_functions
from converters.graph.recording.caches import (
    CACHED,
    CachedForward,
    cached_forward,
    recorded_methods,
    with_cached_forward,
)
from converters.graph.recording.group import group
from converters.graph.recording.guards import Bound
from converters.graph.recording.masks import attention_masks, broadcast_masks
from converters.graph.recording.returned import ReturnedRecord
from converters.graph.recording.shared import first_names
from converters.graph.recording.trace import GraphError, Trace, trace
from converters.graph.starts.watch import Starts
from converters.graph.writing import linen, nnx
from converters.graph.writing.boundaries import constrain_layers, convolve_in_groups
from converters.graph.writing.cache import Cache, cache_of
from converters.graph.writing.classes import classes
from converters.graph.writing.dispatched import with_dispatch
from converters.graph.writing.draft import Drafter, Missing
from converters.graph.writing.initial import copied_starts
from converters.graph.writing.model import Class, Limits, Model
from converters.graph.writing.patterns import plain, pruned
from converters.graph.writing.records import Records
from converters.graph.writing.repeated.repeats import Repeats, with_repeats
from converters.graph.writing.repeated.stacks import LayerStack
from converters.graph.writing.training import MODE, refusal
from converters.host_draws import HostDraw
from converters.mapping.paths import Api


@dataclass(frozen=True)
class Argument:
    """An input of the port.

    Attributes:
        name: its name.
        dtype: numpy's name of its dtype.
        shape: its sides: integers, or names where they are free.
        fixed: whether the port holds only for the recorded values of this input.
        optional: whether a caller may leave it out.
        needs: the other optional input that it requires; "" if none.
        hides: whether masks of attentions are made from it alone.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    fixed: bool = False
    optional: bool = False
    needs: str = ""
    hides: bool = False


@dataclass(frozen=True)
class Output:
    """A tensor that the port returns.

    Attributes:
        code: the expression that reads it from `outputs`: `outputs["logits"]`.
        floating: whether it has a floating dtype.
        is_loss: whether the original calls it `loss` and it is one number.
    """

    code: str
    floating: bool
    is_loss: bool = False


@dataclass(frozen=True)
class FurtherMethod:
    """A further method of the original that is also a method of the port.

    Attributes:
        name: its name in both.
        inputs: its inputs, by name.
        free: sides of the inputs that may have other sizes.
        bounds: conditions on free sizes that the source asserts.
    """

    name: str
    inputs: tuple[Argument, ...]
    free: tuple[str, ...]
    bounds: tuple[Bound, ...]


@dataclass(frozen=True)
class Port:
    """A ported model.

    Attributes:
        modeling: the source of `modeling.py`; it reads its sizes by `from .config import …`.
        config: the source of `config.py`.
        model_class: the class to make: `model_class(config_class())`.
        config_class: the dataclass of its sizes.
        inputs: what it is called with, by name.
        free: which sides of the inputs may be others.
        baked: what was fixed when the model was recorded.
        notes: what else to know.
        missing: operators without a lowering; in the source functions stand for them that raise.
        origin: class, file and first line of the originals.
        trains: whether it computes otherwise in training, which `deterministic=False` says.
        draws: whether it draws random numbers in training: it needs `rngs={"dropout": key}` then.
        statistics: whether it updates statistics in training: `mutable=["batch_stats"]`.
        refused: why training is not in it, with a line of the original; "" where it is.
        drawn: inputs that training needs, which the original draws by Python or numpy.
        constants: arrays that go into the file of weights beside them, by path ("buffers/…").
        settings: the values of the configuration, by name.
        sources: name in the configuration → what the original calls it, and paths of modules that have it.
        bounds: conditions on free sizes that the source asserts.
        write: writes both sources anew, with other limits, and with layers that round once or not.
        limits: of its sources.
        own_gradients: functions whose own gradient (`torch.autograd.Function`) the port lacks.
        streams: what its forward draws from: the names of `rngs`.
        same_dtype: why its source does not follow the dtype of its weights; "" if it does.
        initial: arrays that `init` reads from a file, by path in the model.
        otherwise: arrays that `init` starts otherwise than the original does: key in the state dict → why.
        watched: whether it is known how the original starts.
        left: inputs of the original that the port does not take, or demands though the original does not,
            each with the reason.
        methods: methods of the original, beside its forward, that it has.
        methods_left: those that it does not have.
        api: the API of Flax that it is written in.
        cache: its cache; None: it has none.
        stacks: lists of layers whose weights are stacked.
        outputs: the tensors that its forward returns.
        layer_sizes: path of a layer of the original → its attribute → expression of settings, where the
            arrangement of its weights depends on it.
    """

    modeling: str
    config: str
    model_class: str
    config_class: str
    inputs: tuple[Argument, ...]
    free: tuple[str, ...] = ()
    baked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    origin: tuple[tuple[str, str, int], ...] = ()
    trains: bool = False
    draws: bool = False
    statistics: bool = False
    refused: str = ""
    constants: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    streams: tuple[str, ...] = ()
    drawn: tuple[HostDraw, ...] = ()
    same_dtype: str = ""
    own_gradients: tuple[str, ...] = ()
    stages: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    bounds: tuple[Bound, ...] = ()
    write: Callable[[Limits, bool], tuple[str, str]] | None = field(
        default=None, repr=False, compare=False
    )
    limits: Limits = field(default_factory=Limits, repr=False)
    initial: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    otherwise: Mapping[str, str] = field(default_factory=dict)
    watched: bool = False
    left: Mapping[str, str] = field(default_factory=dict)
    methods: tuple[FurtherMethod, ...] = ()
    methods_left: tuple[str, ...] = ()
    api: Api = "linen"
    cache: Cache | None = None
    stacks: tuple[LayerStack, ...] = ()
    outputs: tuple[Output, ...] = ()
    layer_sizes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def limited(self, limits: Limits) -> Port:
        """The port with sources that reject sizes outside these limits."""
        if self.write is None:
            return self
        modeling, config = self.write(limits, False)
        asserted = tuple(bound for bound in self.bounds if bound.text not in limits.lifted)
        return replace(self, modeling=modeling, config=config, bounds=asserted, limits=limits)

    def rounding_once(self) -> Port | None:
        """The port whose layers and activations round once in 16 bits; None if it has no others."""
        if self.write is None:
            return None
        modeling, _ = self.write(self.limits, True)
        return None if modeling == self.modeling else replace(self, modeling=modeling)


Tensors = Mapping[str, torch.Tensor]
Arguments = Mapping[str, Mapping[str, Any]]


# New objects between two garbage collections. Python's 700 are a few nodes of a recording, each collection
# searches all that is in use and calls JAX, and that took a sixth of the time of a port.
_NEW_OBJECTS = 20_000


@contextmanager
def _seldom_collected() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _NEW_OBJECTS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@_seldom_collected()
def port(
    module: torch.nn.Module,
    inputs: Tensors,
    starts: Starts | None = None,
    methods: Mapping[str, Tensors] | None = None,
    api: Api = "linen",
    cache: bool = False,
    repeats: Repeats = Repeats(),  # noqa: B008 (frozen)
    *,
    constrain: bool = False,
    arguments: Arguments | None = None,
) -> Port:
    """Write a torch model in Flax.

    Args:
        module: the model; it is put into `eval()`.
        inputs: what its forward is called with, by name; the shapes are examples. Those that are None by
            default may be left out in the port too, if both can be one source. A text model of transformers
            takes its masks and positions also if they are not among these.
        starts: how its factory was seen to initialize it (`converters.graph.starts.watch`); None: nobody
            watched, and `init` draws as Flax does.
        methods: further methods that are ported, each with what it is called with.
        api: the API of Flax.
        cache: whether the port has the model's cached forward (`recording.caches`).
        repeats: how repeated layers are written.
        constrain: whether the activations between layers are constrained to a mesh; the source then
            imports `constrain_batch`, `conv_in_groups` and `attend_on_mesh` from a file of partition rules.
        arguments: what the constructors of its modules were called with: path → name → value. Of a module
            that is left out, what it and its configuration hold is taken.

    Raises:
        GraphError: it cannot be recorded, or has a form that no port has.
    """
    for method in methods or {}:
        require_method(module, method, api)
    methods, arguments = methods or {}, arguments or {}
    if not cache:
        return _port(module, inputs, starts, methods, api, None, repeats, constrain, arguments)
    module.eval()
    cached = cached_forward(module, inputs)
    with with_cached_forward(module, cached):
        return _port(module, inputs, starts, methods, api, cached, repeats, constrain, arguments)


def _port(
    module: torch.nn.Module,
    inputs: Tensors,
    starts: Starts | None,
    methods: Mapping[str, Tensors],
    api: Api,
    cached: CachedForward | None,
    repeats: Repeats,
    constrain: bool,
    arguments: Arguments,
) -> Port:
    both, options, others = _recordings(module, inputs, methods)
    if cached is not None:
        others = {**others, **_cached_methods(module, inputs, cached, both)}
    try:
        graph, drafter, model = _written(
            module, both, options, others, starts, api, arguments, cached
        )
    except GraphError as error:
        if both.evaluation is None and all(
            recorded_method.evaluation is None for recorded_method in others.values()
        ):
            raise
        both, others = _without_training(both, others, error.what)
        graph, drafter, model = _written(
            module, both, options, others, starts, api, arguments, cached
        )
    if constrain:
        constrain_layers(model, graph, dict(module.named_modules(remove_duplicate=False)))
    functions = drafter.functions
    if repeats.attention:
        model, functions = with_dispatch(model, functions, repeats.attention, on_mesh=constrain)
    repeated = with_repeats(model, repeats, drafter.streams)
    model = repeated.model
    recorded, full_graph = both.recorded, both.graph
    bounds = options.bounds if options.names else recorded.bounds
    _refuse_training(model.classes[-1], both.modes.refused)
    drawn = tuple(draw for draw in both.drawn.draws if draw.name in both.modes.drawn)
    if drawn or graph.of_mode:
        model.classes[-1].takes_mode = True
    name = model.classes[-1].name
    config = f"{name.removesuffix('Model')}Config"
    flax = "Flax NNX" if api == "nnx" else "Flax"
    title = f"{name} in {flax}, ported from {_where(module)}."
    records = Records(
        [
            *(cls.name for cls in model.classes),
            *(function.name for function in functions),
            *drafter.stubs,
            *linen.IMPORTED,
            *known_functions(),
            config,
            "Module",
        ]
    )
    plain_methods = {
        called: records.method(
            method,
            recorded.returned if method.of == "forward" else others[method.of].recorded.returned,
        )
        if called == "__call__" or method.of != "forward"
        else method
        for called, method in model.classes[-1].methods.items()
    }
    model.classes[-1].methods.update(plain_methods)

    def write(limits: Limits, exact: bool) -> tuple[str, str]:
        for called, method in plain_methods.items():
            if method.of != "forward":
                of = others[method.of].recorded
                own = replace(limits, axes={}, lifted=frozenset())
                demands = _demands(_fixed(of), of.bounds, own, {})
            elif called == "__call__":
                demands = _demands(graph.fixed, bounds, limits, options.needs)
                demands = [*map(_demand_drawn, drawn), *demands]
            else:
                continue
            with_demands = replace(method, body=[*demands, *method.body])
            model.classes[-1].methods[called] = with_demands
        layers = drafter.classes_of_ours()
        modeling = (nnx if api == "nnx" else linen).modeling(
            model,
            config,
            title,
            [*records.written.values(), *functions],
            layers,
            drafter.stubs,
            exact=exact,
        )
        said = f"The sizes of {name}."
        sizes = linen.configuration(model, config, said, limits.values, limits.lengths)
        return convolve_in_groups(modeling) if constrain else modeling, sizes

    modeling, sizes = write(Limits(), False)
    missing = tuple(
        {
            (operator.op, operator.path, operator.line): operator for operator in drafter.missing
        }.values()
    )
    return Port(
        modeling=modeling,
        config=sizes,
        model_class=name,
        config_class=config,
        inputs=_inputs(graph, options.needs),
        free=_free(graph),
        baked=(
            *_numbers_in(modeling, drafter.baked),
            *(f"{name}: {values}" for name, values in graph.fixed.items()),
        ),
        notes=(
            *recorded.notes,
            *records.lacking,
            *_dtypes_note(recorded),
            *_of_mode_notes(graph),
            *copied_starts(starts or {}, drafter.first, _unread(module, drafter)),
            *map(_own_gradient, recorded.own_gradients),
            *_left_note(module, others),
            *repeated.notes,
            *(
                f"{name}: {note}"
                for name, recorded_method in others.items()
                for note in recorded_method.recorded.notes
            ),
        ),
        missing=missing,
        origin=_origin(model),
        trains=drafter.training.any or bool(graph.of_mode),
        drawn=drawn,
        draws=bool(drafter.training.drawing),
        statistics=bool(both.modes.statistics),
        refused=both.modes.refused,
        constants=_constants(drafter),
        streams=tuple(sorted(drafter.streams)),
        same_dtype=recorded.same_dtype,
        own_gradients=recorded.own_gradients,
        initial=dict(drafter.initial.values),
        otherwise=drafter.initial.unwritten() if starts is not None else {},
        watched=starts is not None,
        methods=tuple(
            FurtherMethod(name, _inputs(of, {}), _free(of), others[name].recorded.bounds)
            for name, of in _entries(graph, others).items()
            if cached is None or name not in CACHED
        ),
        cache=None if cached is None else cache_of(drafter, model, cached),
        methods_left=tuple(name for name in further_methods(module) if name not in others),
        stages={"graph.txt": str(full_graph), "plain.txt": str(graph)},
        settings=model.settings,
        sources=model.sources,
        bounds=bounds,
        write=write,
        left=options.refused,
        api=api,
        stacks=repeated.stacks,
        outputs=tuple(
            _outputs(graph, graph.outputs, "outputs", "", recorded.returned, records.written)
        ),
        layer_sizes=model.layer_sizes,
    )


def _numbers_in(modeling: str, baked: Iterable[str]) -> Iterator[str]:
    """The notes on numbers ("256 in Mlp, net.py:12") that the source has: `jnp.split` needs no half."""
    numbers = {
        node.value
        for node in ast.walk(ast.parse(modeling))
        if isinstance(node, ast.Constant) and type(node.value) in (int, float)
    }
    for note in baked:
        number = re.match(r"-?(\d+) in ", note)
        if number is None or int(number[1]) in numbers:
            yield note


def _outputs(
    graph: Graph, value: Any, code: str, name: str, returned: Any, written: Collection[str]
) -> Iterator[Output]:
    """The tensors in the result of a call, each with the expression that reads it.

    Args:
        graph: the recording.
        value: the result, of tuples and dicts.
        code: the expression that reads it.
        name: its key or field in what holds it.
        returned: the structure of the result, with records.
        written: names of the records that the port has.
    """
    if not isinstance(value, Mapping | list | tuple):
        if isinstance(value, Ref):
            fact = graph.facts[value.id]
            is_loss = name == "loss" and fact.shape == ()
            yield Output(code, fact.dtype.is_floating_point, is_loss)
        return
    record = returned if isinstance(returned, ReturnedRecord) else None
    of: Any = record.elements if record is not None else returned
    if isinstance(value, Mapping):
        pairs = [(str(key), key, element) for key, element in value.items()]
    else:
        fields = list(of) if record is not None and len(of) == len(value) else []
        keys = fields or [""] * len(value)
        pairs = [(key, at, each) for at, (key, each) in enumerate(zip(keys, value, strict=True))]
    for key, at, element in pairs:
        is_field = record is not None and record.kind.__name__ in written
        read = f"{code}.{key}" if is_field and key else f"{code}[{at!r}]".replace("'", '"')
        inner = None
        if isinstance(of, Mapping):
            inner = of.get(key)
        elif isinstance(of, tuple) and isinstance(at, int) and at < len(of):
            inner = of[at]
        yield from _outputs(graph, element, read, key, inner, written)


def _own_gradient(function: str) -> str:
    return (
        f"{function} has a gradient of its own, which is not in the port: "
        "write jax.custom_vjp where the proof of gradients differs"
    )


def _recordings(
    module: torch.nn.Module, inputs: Tensors, methods: Mapping[str, Tensors]
) -> tuple[Both, Options, dict[str, Both]]:
    """Recordings of the forward and of further methods: all with dtypes or none, all with training
    or none.

    Raises:
        GraphError: a recording fails.
    """
    forward = recorded_with_options(module, inputs)
    others: dict[str, Both] = {}
    for name, method_inputs in methods.items():
        with as_forward(module, name), methods_as_calls(module):
            try:
                same = forward.both.recorded.same_dtype
                others[name] = recorded_as_given(module, method_inputs, same)
            except GraphError as error:
                raise GraphError(f"method {name}: {error.what}", error.remedy) from error
        why = others[name].recorded.same_dtype
        if why and not forward.both.recorded.same_dtype:
            forward = recorded_with_options(module, inputs, why)
            for earlier in list(others)[:-1]:
                with as_forward(module, earlier), methods_as_calls(module):
                    others[earlier] = recorded_as_given(module, methods[earlier], why)
    both = forward.both
    refused = [
        recorded_mode.modes.refused
        for recorded_mode in (both, *others.values())
        if recorded_mode.modes.refused
    ]
    for name, recorded_method in others.items():
        if recorded_method.modes.drawn:
            refused.append(
                f"method {name} draws {', '.join(recorded_method.modes.drawn)} by Python or numpy"
            )
        if recorded_method.graph.of_mode:
            refused.append(f"method {name} gives other outputs in training")
    if refused:
        both, others = _without_training(both, others, refused[0])
    return both, forward.options, others


def _cached_methods(
    module: torch.nn.Module, inputs: Tensors, cached: CachedForward, both: Both
) -> dict[str, Both]:
    """The recordings of the cached forward, by the name of the method; `both` are those of the forward.

    Raises:
        GraphError: the cached forward cannot be recorded.
    """
    methods: dict[str, Both] = {}
    why = both.recorded.same_dtype
    growing = [slot.name for slot in cached.slots if None in slot.shape[1:]]
    for name, method_inputs in recorded_methods(module, cached, inputs).items():
        with as_forward(module, name):
            with broadcast_masks():
                recording = trace(module, method_inputs, masks=growing, same_dtype=why)
            recorded = Both(recording, group(recording))
            if both.evaluation is not None:  # else its dropouts would be missing in this method
                recorded = both_modes(module, method_inputs, recording, recorded.graph, growing)
        recording = recorded.recorded
        reason = recording.same_dtype if recording.same_dtype != why else ""
        if recording.fixed or recording.bounds:
            reason = ", ".join([*recording.fixed, *(bound.text for bound in recording.bounds)])
        if reason:
            raise GraphError(
                f"--cache: the cached forward supports some values only ({reason})",
                "port it without --cache",
            )
        methods[name] = recorded
    return methods


def _without_training(
    both: Both, others: Mapping[str, Both], reason: str
) -> tuple[Both, dict[str, Both]]:
    evaluated = {name: evaluation_alone(both_modes, reason) for name, both_modes in others.items()}
    return evaluation_alone(both, reason), evaluated


def _written(
    module: torch.nn.Module,
    both: Both,
    options: Options,
    others: Mapping[str, Both],
    starts: Starts | None,
    api: Api,
    arguments: Arguments,
    cached: CachedForward | None = None,
) -> tuple[Graph, Drafter, Model]:
    """The graph in its final form, and the classes written from it.

    Raises:
        GraphError: a part has a form that no port has.
    """
    constants = tensors(both.recorded) | dict(both.graph.constants)
    modules = dict(module.named_modules(remove_duplicate=False))
    graph = plain(both.graph, modules, constants)
    drawn = both.modes.drawn
    if drawn and both.evaluation is not None:
        graph = _with_drawn(graph, both.evaluation, modules, options, drawn)
        constants |= graph.constants
    elif options.bare is not None:
        try:
            graph = merged(graph, options.bare)
        except OptionError as error:
            raise GraphError(f"with and without {', '.join(options.names)}: {error}", "") from None
        graph = replace(graph, root=pruned(graph.root, graph.outputs))
        constants |= graph.constants
    if others:
        named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers())
        shared = {name for name, _ in named} | set(first_names(module))
        graphs = {}
        for name, method_recording in others.items():
            own = tensors(method_recording.recorded) | dict(method_recording.graph.constants)
            graphs[name] = plain(method_recording.graph, modules, own)
            if cached is not None and name in CACHED:
                graphs[name] = with_caches(graphs[name], cached, CACHED[name])
            constants = own_constants(own, name, shared) | constants
        graph = joined(graph, graphs, shared)
    graph = with_same_results(graph)
    statistics = both.modes.statistics.union(
        *(method_recording.modes.statistics for method_recording in others.values())
    )
    modes = replace(both.modes, statistics=statistics)
    drafter = Drafter(graph, module, constants, modes, starts, api, arguments)
    model = classes(drafter)
    for path in sorted(modes.statistics):
        layer = drafter.layer(path)
        if layer is None or not layer.trains:
            raise GraphError(f"{path} keeps statistics, and is not a layer of its own", "report it")
    return graph, drafter, model


def _with_drawn(
    graph: Graph,
    evaluation: tuple[Trace, Graph],
    modules: Mapping[str, torch.nn.Module],
    options: Options,
    drawn: Sequence[str],
) -> Graph:
    """The graph of training, with the inputs drawn by Python or numpy left out in evaluation.

    Raises:
        GraphError: without them the graph is not that of evaluation.
    """
    recorded, evaluated_graph = evaluation
    evaluated = plain(evaluated_graph, modules, tensors(recorded) | dict(evaluated_graph.constants))
    names = ", ".join(drawn)
    called = {call.path for call in calls(graph.root)} - {
        call.path for call in calls(evaluated.root)
    }
    own = [path for path in sorted(called) if any(True for _ in modules[path].parameters())]
    if own:  # `init` would not make them
        what = f"training draws {names} by Python or numpy, and then alone calls {own[0]}, which has weights"
        raise GraphError(what, "")
    try:
        both_graphs = merged(graph, evaluated if options.bare is None else options.bare)
    except OptionError as error:
        raise GraphError(f"training draws {names} by Python or numpy: {error}", "") from None
    both_graphs = replace(both_graphs, root=pruned(both_graphs.root, both_graphs.outputs))
    wanted = {(*options.names, *drawn): graph, options.names: evaluated}
    if options.bare is not None:
        wanted[()] = options.bare
    for some, whole in wanted.items():
        if outcome(restricted(both_graphs, some)) != outcome(whole):
            raise GraphError(
                f"training draws {names} by Python or numpy, and without them it is not evaluation",
                "",
            )
    return both_graphs


def _of_mode_notes(graph: Graph) -> list[str]:
    """Notes on the outputs that only one mode gives, one line for each mode."""
    notes = []
    for training, gives, lacks in (
        (False, "evaluation", "training"),
        (True, "training", "evaluation"),
    ):
        names = [name for name, of in graph.of_mode.items() if of is training]
        if names:
            notes.append(f"the original gives {', '.join(names)} in {gives} only: None in {lacks}")
    return notes


def _left_note(module: torch.nn.Module, others: Mapping[str, Both]) -> list[str]:
    """The methods of the original that the port lacks, in one line."""
    left = [name for name in further_methods(module) if name not in others]
    if not left:
        return []
    cls, them = type(module).__name__, "it" if len(left) == 1 else "them"
    named = ", ".join(f"{cls}.{name}" for name in left)
    return [f"not in the port: {named}; port {them} with --methods {','.join(left)}"]


def _where(module: torch.nn.Module) -> str:
    """The file or module of the original, as the user knows it."""
    name = type(module).__module__
    if not name.startswith("_"):
        return name
    try:
        return Path(inspect.getsourcefile(type(module)) or name).name
    except TypeError:
        return name


def _fixed(recorded: Trace) -> dict[str, Any]:
    return {name: value.tolist() for name, value in recorded.fixed.items()}


def _entries(graph: Graph, others: Mapping[str, Both]) -> dict[str, Graph]:
    """Each further method as a graph with its own inputs."""
    graphs = {}
    for entry in graph.methods:
        fixed = _fixed(others[entry.method].recorded)
        graphs[entry.method] = replace(
            graph, inputs=entry.inputs, outputs=entry.outputs, fixed=fixed
        )
    return graphs


def _demands(
    fixed: Mapping[str, Any], bounds: tuple[Bound, ...], limits: Limits, needs: Mapping[str, str]
) -> list[ast.stmt]:
    """First statements of the model: reject values and sizes that the recording does not cover."""
    values = [call("demand_recorded", name, code(name), values) for name, values in fixed.items()]
    sizes = {bound.condition: bound.text for bound in bounds if bound.text not in limits.lifted}
    for (name, axis), size in limits.axes.items():
        sizes[f"{name}.shape[{axis}] == {size}"] = f"axis {axis} of {name}: {size}"
    checks = [call("demand_size", code(condition), text) for condition, text in sizes.items()]
    refused: list[ast.stmt] = [
        ast.If(
            code(f"{name} is not None and {other} is None"),
            [ast.Raise(call("ValueError", f"{name} needs {other}: see README.md"), None)],
            [],
        )
        for name, other in needs.items()
    ]
    return [*refused, *(ast.Expr(check) for check in (*values, *checks))]


def _demand_drawn(drawn: HostDraw) -> ast.stmt:
    """A check of the model: training needs the inputs that the original draws itself."""
    text = f"training needs {drawn.name}: see README.md"
    test = code(f"not {MODE} and {drawn.name} is None")
    return ast.If(test, [ast.Raise(call("ValueError", text), None)], [])


def _refuse_training(cls: Class, reason: str) -> None:
    """Make the model refuse training if the port lacks the original's training behavior."""
    if reason:
        cls.takes_mode = cls.refuses = True
        for name, method in cls.methods.items():
            if method.of != "forward" or name == "__call__":
                method.body.insert(0, refusal(reason))


def _dtypes_note(recorded: Trace) -> list[str]:
    why = recorded.same_dtype
    return [f"its classes have no `dtype`: {why}"] if why else []


# Names of free sides, by axis: only inputs of fewer than four axes have free sides beyond the
# first.
_SIDES = ("batch", "length", "features", "depth", "height", "width")


def _inputs(graph: Graph, needs: Mapping[str, str]) -> tuple[Argument, ...]:
    arguments = []
    masks = attention_masks(graph)
    for (name, number), shape in zip(graph.inputs, _named_shapes(graph), strict=True):
        fact = graph.facts[number]
        narrow = graph.narrow is not None and fact.dtype == COMPUTE
        dtype = str(torch.float32 if narrow else fact.dtype).removeprefix("torch.")
        spared = name in graph.optional
        arguments.append(
            Argument(
                name,
                dtype,
                shape,
                name in graph.fixed,
                spared,
                needs.get(name, ""),
                hides=name in masks,
            )
        )
    return tuple(arguments)


def _named_shapes(graph: Graph) -> list[tuple[int | str, ...]]:
    """The shape of each input, with names for free sides: `mask_length` beside another input's `length`."""
    known: dict[tuple[str, Any], str] = {}

    def named(of: str, shape: Sequence[Any], axis: int) -> int | str:
        side = shape[axis]
        if not isinstance(side, Free):
            return int(side)
        # (batch, channels, length): what follows a fixed side counts positions.
        fixed = axis == 2 and not isinstance(shape[1], Free)
        name = _SIDES[1 if fixed else axis]
        if not axis:
            return name
        free = name if name not in known.values() else f"{of}_{name}"
        return known.setdefault((name, side.expression), free)

    return [
        tuple(named(name, shape, axis) for axis in range(len(shape)))
        for name, shape in ((name, graph.facts[number].shape) for name, number in graph.inputs)
    ]


def _free(graph: Graph) -> tuple[str, ...]:
    sides_by_input = []
    for (name, _), shape in zip(graph.inputs, _named_shapes(graph), strict=True):
        sides = [
            f"{side} (axis {axis})" for axis, side in enumerate(shape) if isinstance(side, str)
        ]
        if sides:
            sides_by_input.append(f"{name}: {', '.join(sides)}")
    return tuple(sides_by_input)


def _unread(module: torch.nn.Module, drafter: Drafter) -> set[str]:
    """The buffers that the port does not have, as no forward reads them."""
    return {name for name, _ in module.named_buffers()} - drafter.read


def _origin(model: Model) -> tuple[tuple[str, str, int], ...]:
    origins = []
    for cls in model.classes:
        try:
            file = inspect.getsourcefile(cls.origin) or ""
            line = inspect.getsourcelines(cls.origin)[1]
        except (OSError, TypeError):
            file, line = "", 0
        origins.append((cls.origin.__name__, file, line))
    return tuple(dict.fromkeys(origins))


def _constants(drafter: Drafter) -> dict[str, np.ndarray[Any, Any]]:
    """Buffers that the port reads and no checkpoint has."""
    return dict(drafter.stored().items())
