"""Facts about the calls of one file, as plain values that can be sent to another process."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from migrate.catalogue.cpu_operators import OPERATORS
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.callers import all_first_attributes, first_parameters
from migrate.model.calls.effect import Effect
from migrate.model.calls.group_ranks import group_ranks
from migrate.model.calls.handed_back import (
    HandedBack,
    masks_handed_back,
    parameters_handed_back,
    sizes_handed_back,
)
from migrate.model.calls.kind import Kind
from migrate.model.calls.kinds import External
from migrate.model.calls.loaded_modules import loaded_modules
from migrate.model.calls.order import closure
from migrate.model.calls.rank_tests import (
    apart_attributes,
    apart_functions,
    first_functions,
    unset_attributes,
)
from migrate.model.calls.reexports import reexports_of
from migrate.model.calls.registries import Hidden, registries_of
from migrate.model.calls.scopes import Function, ModuleScope, Region, Scope
from migrate.model.calls.warm_up import takes_loss
from migrate.model.draws.drawing import drawing_of, drawn_attributes, shifting_calls
from migrate.model.draws.growing import Growing, growing_calls
from migrate.model.draws.host_generators import host_drawing, host_draws
from migrate.model.draws.randomness import NO_SEEDING, Seeding, randomness_of
from migrate.model.objects.asked import (
    declared_tensors,
    devices_of,
    devices_or_numbers,
    generators_of,
    given_moving_models,
    held_by_some,
    host_transforms,
    indices_of,
    models_of,
    moved_inputs,
    spelled_devices,
)
from migrate.model.objects.autocasts import narrow_regions
from migrate.model.objects.collating import collating_of, gathering_of, settings_given
from migrate.model.objects.device_numbers import device_numbers
from migrate.model.objects.feeding import feeding_of
from migrate.model.objects.fused import makes_fused
from migrate.model.objects.generators import counting_generators
from migrate.model.objects.given_parameters import given_parameters
from migrate.model.objects.loading import loaded_parts_of, loading_of
from migrate.model.objects.nested import nested_of
from migrate.model.objects.objects import placed_models
from migrate.model.objects.optimizers import FileOptimizers, optimizers_of
from migrate.model.objects.programs import may_evaluate, programs_of
from migrate.model.objects.sample_texts import text_parts
from migrate.model.objects.sampling import (
    batch_evaluators,
    forwards_of,
    gradient_free,
    samplers_of,
)
from migrate.model.objects.ties import FileTies, ties_of
from migrate.model.objects.unfollowed import halves_of, is_of_known_package, unfollowed_of
from migrate.model.processes.acting import (
    acting_of,
    combining_of,
    iterated,
    meeting_of,
    running_wrapped_of,
    runs_meeting,
    waiting_of,
    wrapping_of,
)
from migrate.model.processes.early_ranks import importing_ranks
from migrate.model.processes.endings import STOPPING, ending_of
from migrate.model.processes.framework_training import led_of
from migrate.model.processes.launching import joining_of, joins_by, launching_of, may_join
from migrate.model.processes.optional_groups import optional_groups
from migrate.model.processes.rivals import Rival, rivals_of
from migrate.model.processes.set_ranks import LAUNCH_WORDS, ranks_set_for
from migrate.model.processes.started import is_distributed_training, starting_replicas
from migrate.model.processes.threads import STARTING, handlers_in_threads, saves_in_threads
from migrate.model.project.project import Project, SourceModule, file_of
from migrate.model.project.read_attributes import (
    counts_read,
    options_read,
    read_attributes,
    set_attributes,
)
from migrate.model.replicated.broadcasts import NAMES_INFINITE, broadcast_parts
from migrate.model.replicated.drawn_weights import drawn_weights
from migrate.model.replicated.extensions import extensions_of
from migrate.model.replicated.kept_states import kept_states
from migrate.model.replicated.mixed_groups import given_of, mixed_groups, run_with
from migrate.model.replicated.prepared import unprepared_batches
from migrate.model.replicated.prepared_models import loads_to_accelerator, unwrapped_modules
from migrate.model.replicated.saves import Saved, saves_of
from migrate.model.replicated.shares import Share, divided_saves
from migrate.model.replicated.uneven_turns import UnevenTurns, uneven_turns
from migrate.model.replicated.used_by_some import KEYWORDS, REST, Used, used_by_some
from migrate.syntax.origins import at_line
from migrate.syntax.walk_ast import walk

# End of a call: line (from 1) and column (from 0, in characters). No two calls end at the same position.
End = tuple[int, int]

UNVALIDATED = re.compile(rb"set_default_validate_args\(\s*(value\s*=\s*)?False")
# Process group for CPU tensors too: without a backend, or with one backend per kind of device.
BACKENDS = re.compile(
    rb"init_process_group\s*\((?!\s*[\"'](?!cpu:)|\s*backend\s*=\s*[\"'](?!cpu:))"
)
# Functions that convert layers to SyncBatchNorm.
CONVERTS = re.compile(rb"convert_sync_?batchnorm|convert_syncbn_model|sync_batch_norm\(")
# What a file names that sets attributes of parameters.
SETS_PARAMETERS = re.compile(
    rb"Parameter\(|register_parameter|\.(?:weight|bias)\.\w+\s*[:=]|setattr\("
    rb"|parameters\(\w*\)[^\n]*:[ \t]*(?:#[^\n]*)?\n"
)
MOST_CLASSES = 3  # that a message names


@dataclass(frozen=True)
class Definition:
    """Function or method of the project.

    Args:
        path, line, name: the file, the line of its `def`, its name.
        bound: how many of its first parameters get no argument from the call, besides `self`.
        calls: the last parts of the names of what its body calls.
        returns: whether it returns a value.
        reads: whether it reads values of tensors, itself or by a function that it calls.
        combines: whether it makes a collective of tensors, itself or by a function that it calls.
        used_by_some: the parameters that it uses below a test of the rank: see `used_by_some`.
        handed_back: the parameters whose tensors its result is computed from, by name and by index.
        parameters: the names of its positional parameters, without `self`.
        takes_loss: whether it runs the backward pass of a loss that its callers compute.
        masks: the positions of masks in the tuples that it returns.
        keywords: the names of the parameters that are passed by keyword only.
        sizes: the positions of sizes in the tuples that it returns.
    """

    path: Path
    line: int
    name: str
    bound: int = 0
    calls: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    returns: bool = field(default=False, compare=False, repr=False)
    reads: bool = field(default=False, compare=False, repr=False)
    combines: bool = field(default=False, compare=False, repr=False)
    used_by_some: Used = field(default=frozenset(), compare=False, repr=False)
    handed_back: HandedBack = field(default=frozenset(), compare=False, repr=False)
    parameters: tuple[str, ...] = field(default=(), compare=False, repr=False)
    takes_loss: bool = field(default=False, compare=False, repr=False)
    masks: frozenset[int] = field(default=frozenset(), compare=False, repr=False)
    keywords: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    sizes: frozenset[int] = field(default=frozenset(), compare=False, repr=False)

    def is_used_by_some(self, index: int, keyword: str | None, star: str = "") -> bool:
        """Whether some replicas alone use an argument of a call.

        Args:
            index: the position of the argument among those of the call.
            keyword: the name with which the call passes it; None without one.
            star: `*` or `**` before the argument: it may go to each parameter that remains.
        """
        used = self.used_by_some
        if star == KEYWORDS:
            return any(isinstance(name, str) and name != REST for name in used)
        if star == REST:
            return REST in used or any(isinstance(at, int) and at >= index for at in used)
        if keyword is None:
            return index in used or (REST in used and index >= len(self.parameters))
        known = {*self.parameters, *self.keywords}
        return keyword in used or (KEYWORDS in used and keyword not in known)


@dataclass(frozen=True)
class ModuleCalls:
    """Facts about the calls of one file.

    Args:
        effects: the effect of each call on the training state; calls without an effect are left out.
        definitions: the functions of the project that each call runs.
        later: the functions that the backward pass runs for each call: the `backward` of `Cls.apply(…)`.
        step_loops: the lines of the step loops.
        marked: the lines of the step loops that a comment `# migrate: step` marks.
        unused_marks: the lines of such comments that mark no step, with the reason.
        hidden: the lines of the loops that may train through code that cannot be followed, such as an object
            whose class is chosen by name, with the advice for each.
        obstacles: the calls that train in a way that no step can hold, with the reason.
        local: the dotted names of the modules that it imports and that are files of the project.
        ties: the weights that modules of its models share, and the moves of those models.
        at_launch: the lines of its functions that other files call in the launching process before the
            replicas start.
        early_seeds: if only this file is rewritten: the calls in that process that run a function of another
            file that seeds CUDA or XLA.
        devices: the expressions that name a device, with its kind, wherever in the project it is made.
        spelled_devices: the strings, each by its end, that some move in the project uses as its device.
        group_ranks: the calls that ask for the index of the replica in a group, also by functions.
        moved_files: the statements that change a file saved before, by the end of the call or the condition;
            each with the end of the save.
        device_numbers: the indices of devices, each by its end, that some code of the project computes with,
            also in a function that gets the index.
        devices_or_numbers: the devices that may also be such an index.
        stars: the meanings of the names that `from module import *` brings from outside of the project, also
            through its files.
        gives_all: whether a file of the project imports `*` from this one.
        kept_imports: the names of its imports that stay, used or not: other files of the project take them
            (`from comm import dist`, `comm.dist`), or the import runs statements of a module of the project.
        reexported: the names of the project's modules, as the file imports them, that are names from outside:
            `comm.dist`, if comm.py has `import torch.distributed as dist`.
        on_accelerator: whether each loop that trains or may evaluate, by its line, runs on an accelerator;
            None if the source does not decide it.
        on_cpu: the lines of the loops with a comment `# migrate: cpu`, each with the line of a move to an
            accelerator that contradicts it, or 0.
        led: whether a framework that launches and moves by itself (Accelerate) runs its training: None
            without one, empty if the file calls it, otherwise the file that calls it and uses this one.
        distributed: whether running the file trains on an accelerator with several processes whose start is
            not in the project.
        reading: the calls that run a function that reads values of tensors.
        acting: the calls that run a function that writes, logs, saves or trains.
        ending: the calls that run a function that may raise or end the program.
        unset: the attributes that the project makes None on all replicas but the first.
        loading: the calls that run a function that returns contents of a checkpoint, on the host.
        loading_parts: the calls that run a function that returns a tuple with such parts, with their
            positions.
        divided_saves: the calls of torch.save whose path depends on the replica, with the reason.
        uneven_turns: the expressions that divide data by hand without padding, with a loop over the share in
            whose turns all replicas meet.
        meeting: the calls that run a function in which all replicas meet, as in a collective.
        saves: the calls that save through a function of another file.
        saved_by_first: the lines of its functions that save and that other files, which are rewritten too,
            only call under rank tests; whether one replica of every host passes these.
        joins: the calls that join a process group through a function of another file.
        first: the attributes that hold on the first replica alone, wherever in the project they are made.
        first_parameters: parameters for which a call passes a test that the first replica alone passes, by
            the line of their function; whether all calls pass such a test, or True.
        saves_in_threads: its saves that a thread beside the replica's own runs, with where that is started.
        firsts: the calls that run a function whose result says whether this is the first replica.
        apart: the attributes that another file sets to different constants below a rank test.
        returning_apart: the calls that run a function which returns different constants below a rank test.
        optimizers: the optimizers that it makes, and whether their models are on the device by then.
        training: the calls that run a function in which a loop trains.
        moving: the calls that run a function that moves something to an accelerator.
        models: the names, attributes, items and calls that are modules of torch.
        declared_tensors: the attributes that their class declares to be tensors; whether to be masks.
        loaded_modules: the calls that return a module from outside of the project, with its name.
        loads_states: whether a file of the project calls `load_state_dict`.
        imported_before_launch: whether a script that starts the replicas imports the file before it does.
        imports_ranks: whether reading it, or a file that it imports, asks the environment for the rank.
        rivals: the frameworks that running the file imports and that take the TPU for themselves.
        optional_groups: the calls that join a process group only if an option says so, in a program for
            several replicas of torch_xla, with the test, and whether it is off by default.
        processes: the calls that make a process whose function joins a process group.
        handlers: the calls that set a signal handler in the thread of a replica, with the code that sets it
            if that is in another file.
        counted: the calls of a generator that yields pairs of a number and a batch, as `enumerate` does.
        sampling: the calls that run a function which runs a model and neither reads a value nor trains.
        forwarding: the calls among them that run it once per call, in no loop.
        evaluating: the calls without gradients, by a decorator of the function or in all its callers, among
            `sampling` and of functions that evaluate a batch and read its values.
        iterated: the names and attributes of iterators that a loop or a builtin runs through.
        sampled: whether each loop of such a function, by its line, runs on an accelerator; None if the source
            does not decide it.
        gradient_free: the lines of its functions without gradients, for the same reasons.
        moved_inputs: the calls of models that DistributedDataParallel wraps, in any file, so that it moves
            their inputs to the GPU.
        placed_models: the calls that wrap a model which is on an accelerator already.
        options_set: the values that any file of the project assigns to the options that this file parses.
        seeding: the seeding calls of the file.
        whole_steps: the lines of its functions that contain steps of their own and run as a part of a step.
        nesting: the calls that run such functions, so that no block of a step goes around them.
        feeding: the lines of its functions that only run within training steps, for their loss.
        drawing: the calls that run a function that returns a random host number.
        host_saves: the saves of a parameter for which all calls pass parts of checkpoints on the CPU.
        host_transforms: the calls of library transforms that draw on the host, with the code that makes
            these.
        drawn_attributes: its classes, by name, with their attributes that are set to such numbers.
        of_libraries: the calls of parameters and attributes for which all callers pass a function of torch,
            numpy or Python.
        collating: the lines of its functions that make batches, as a `collate_fn`.
        collating_settings: for the line of each such method: the parameters of its object's constructor that
            each known construction passes.
        text_parts: the parts of the samples that are texts, by position or key, for the line of each such
            function.
        gathering: the lines of these functions, and of the functions that they run.
        unvalidated: whether the project switches off the checks of torch.distributions.
        own_operators: the operators of tensors that classes of the project have as methods of their own.
        unprepared: the calls of models that Accelerate prepared, with a batch of a loader that it did not
            prepare: the batch, and the location of its loader.
        unwrapped: each `model.module` of a model that Accelerate prepared.
        loading_to_device: the calls that load to the device of Accelerate, or to a text made from it.
        drawn_weights: the calls that prepare a model whose weights each replica draws itself, with the
            reason.
        state_saves: the saves of a parameter for which some call passes the state of a model or an optimizer.
        waiting: the calls that run a function that waits for the device, as `torch.cuda.synchronize` does.
        wrapping: the calls that run a function that wraps a model for several replicas.
        running_wrapped: the calls of methods of other files that run a wrapped model of their object, with
            the place of that forward.
        given_moving: the calls that get a model which moves its inputs to the GPU itself.
        of_index: the names, attributes, items and calls that are the index of a replica, or a number computed
            from it, wherever in the project; those that the file computes with, or gives to a call.
        may_run: the methods of classes made by name that each call of an object of unknown class may run.
        given_parameters: the parameters of its functions, each by the line of the function and its name, for
            which a call anywhere in the project passes parameters or gradients of a model; only in a file
            that computes with the index of a replica.
        host_tensors: the CPU tensors that collectives get, also through other functions and files, with the
            code that puts them there.
        mixed_groups: the calls that join a process group for CPU and GPU tensors, with a tensor of unknown
            device that a collective gets.
        run_without_accelerator: whether a program of the project imports the file and names no accelerator.
        extensions: the dotted names of the modules that the project compiles against torch.
        norms_over_replicas: whether a file of the project makes a layer of torch's SyncBatchNorm, converts to
            it, or passes the class on.
        narrow_regions: the files and lines of the autocast regions of the project that compute in 16 bits.
        makes_fused: whether a file of the project makes an optimizer of torch with `fused=True`.
        host_draws: the calls of `multinomial` with a generator, in loops without gradients.
        host_drawing: the calls that run such a draw, directly or through functions of the project.
        growing: the calls after which more work of the device is pending than after the call before.
        shifting: the calls that draw on the host with the process's own generators, directly or through
            functions of the project: later draws of the process are others than without them. The value is
            whether torch's generator alone is used.
        generators: the calls that make a generator of torch, by any name.
        kept_states: the calls of load_state_dict by which an object of the project keeps the loaded tensors,
            with the statement that keeps them.
        held_by_some: the names, attributes, items and calls that the file tests and that are None on some
            replicas only, wherever in the project they are made.
        unread: whether the file was not read, so that nothing is known about it.
        unread_imports: if only this file is rewritten: the unreadable files that it imports, directly or
            indirectly.
        accelerated_imports: if only this file is rewritten: the files of the project that it imports,
            directly or indirectly, and that name an accelerator or make batches.
        replicated: whether any file of the project uses several processes.
        joins_group: whether any file of the project names a call that joins a process group.
        launches_ranks: whether the project starts its replicas itself.
        launches_xla: whether any file of the project names a launch of torch_xla.
        draws_unseeded: whether running the file draws on the devices of ranks that torch_xla launches, and no
            call seeds them.
        ranks_set: the variables of torchrun that all scripts set which import this file and launch replicas
            of torch_xla.
        joining: lines of the functions that join a process group, directly or through calls.
        broadcast: the tensors of a model that the project broadcasts: parameters, buffers, those of the state
            dict. Empty if the file names no infinity.
        launches: whether running the file calls a function, of any file, that starts the replicas.
        attributes_read: the attributes that this file sets, on any objects, and that some file reads.
        whole: whether all files of the project are known, so that no other one reads what this one sets.
        imported: whether another file of the project imports this one.
        properties: the properties of classes of the project that reading an attribute runs.
        own_flags: the attributes `is_cuda` of objects of the project, which are no tensors.
        logs_elsewhere: whether it calls `logging.basicConfig` and another file of the project does, too.
        named_elsewhere: the functions of the file whose names stand in other files, where one imports it.
        set_elsewhere: the variables of the file that another file sets: `settings.DEBUG = True`.
        counts_read: the fields that it starts its processes by, with the places where files that it imports
            read them.
        options_read: the attributes that files which it imports read; none where it declares no options.
        accelerated: whether the file, or a file that imports it, names an accelerator.
    """

    effects: Mapping[End, Effect] = field(default_factory=dict)
    definitions: Mapping[End, tuple[Definition, ...]] = field(default_factory=dict)
    later: Mapping[End, tuple[Definition, ...]] = field(default_factory=dict)
    step_loops: frozenset[int] = frozenset()
    marked: frozenset[int] = frozenset()
    unused_marks: Mapping[int, str] = field(default_factory=dict)
    hidden: Mapping[int, str] = field(default_factory=dict)
    obstacles: Mapping[End, str] = field(default_factory=dict)
    local: frozenset[str] = frozenset()
    ties: FileTies = field(default_factory=FileTies)
    at_launch: frozenset[int] = frozenset()
    early_seeds: frozenset[End] = frozenset()
    devices: Mapping[End, Kind] = field(default_factory=dict)
    spelled_devices: frozenset[End] = frozenset()
    stars: Mapping[str, str] = field(default_factory=dict)
    gives_all: bool = False
    on_accelerator: Mapping[int, bool | None] = field(default_factory=dict)
    saves: Mapping[End, Saved] = field(default_factory=dict)
    saved_by_first: Mapping[int, bool] = field(default_factory=dict)
    joins: frozenset[End] = frozenset()
    first: frozenset[str] = frozenset()
    firsts: frozenset[End] = frozenset()
    optimizers: FileOptimizers = field(default_factory=FileOptimizers)
    training: frozenset[End] = frozenset()
    moving: frozenset[End] = frozenset()
    on_cpu: Mapping[int, int] = field(default_factory=dict)
    led: str | None = None
    distributed: bool = False
    launches: bool = False
    reading: frozenset[End] = frozenset()
    acting: frozenset[End] = frozenset()
    ending: frozenset[End] = frozenset()
    meeting: frozenset[End] = frozenset()
    unset: frozenset[str] = frozenset()
    loading: frozenset[End] = frozenset()
    models: frozenset[End] = frozenset()
    moved_inputs: frozenset[End] = frozenset()
    placed_models: frozenset[End] = frozenset()
    options_set: frozenset[str] = frozenset()
    seeding: Seeding = NO_SEEDING
    unread: bool = False
    unread_imports: tuple[Path, ...] = ()
    accelerated_imports: tuple[Path, ...] = ()
    replicated: bool = False
    joins_group: bool = False
    launches_ranks: bool = False
    launches_xla: bool = False
    draws_unseeded: bool = False
    ranks_set: frozenset[str] = frozenset()
    joining: frozenset[int] = frozenset()
    broadcast: frozenset[str] = frozenset()
    accelerated: bool = False
    imports_ranks: bool = False
    imported_before_launch: bool = False
    rivals: tuple[Rival, ...] = ()
    processes: frozenset[End] = frozenset()
    handlers: Mapping[End, str] = field(default_factory=dict)
    counted: frozenset[End] = frozenset()
    sampling: frozenset[End] = frozenset()
    forwarding: frozenset[End] = frozenset()
    apart: frozenset[str] = frozenset()
    returning_apart: frozenset[End] = frozenset()
    evaluating: frozenset[End] = frozenset()
    iterated: frozenset[End] = frozenset()
    sampled: Mapping[int, bool | None] = field(default_factory=dict)
    gradient_free: frozenset[int] = frozenset()
    loading_parts: Mapping[End, frozenset[int]] = field(default_factory=dict)
    divided_saves: Mapping[End, Share] = field(default_factory=dict)
    uneven_turns: Mapping[End, UnevenTurns] = field(default_factory=dict)
    optional_groups: Mapping[End, tuple[str, bool]] = field(default_factory=dict)
    first_parameters: Mapping[tuple[int, str], bool] = field(default_factory=dict)
    saves_in_threads: Mapping[End, str] = field(default_factory=dict)
    whole_steps: frozenset[int] = frozenset()
    nesting: frozenset[End] = frozenset()
    feeding: frozenset[int] = frozenset()
    drawing: frozenset[End] = frozenset()
    of_libraries: frozenset[End] = frozenset()
    collating: frozenset[int] = frozenset()
    collating_settings: Mapping[int, tuple[frozenset[str], ...]] = field(default_factory=dict)
    gathering: frozenset[int] = frozenset()
    drawn_attributes: frozenset[tuple[str, str]] = frozenset()
    unvalidated: bool = False
    own_operators: frozenset[str] = frozenset()
    unprepared: Mapping[End, str] = field(default_factory=dict)
    unwrapped: frozenset[End] = frozenset()
    loading_to_device: frozenset[End] = frozenset()
    drawn_weights: Mapping[End, str] = field(default_factory=dict)
    state_saves: frozenset[End] = frozenset()
    host_transforms: Mapping[End, str] = field(default_factory=dict)
    waiting: frozenset[End] = frozenset()
    wrapping: frozenset[End] = frozenset()
    running_wrapped: Mapping[End, str] = field(default_factory=dict)
    given_moving: frozenset[End] = frozenset()
    of_index: frozenset[End] = frozenset()
    device_numbers: frozenset[End] = frozenset()
    devices_or_numbers: frozenset[End] = frozenset()
    group_ranks: frozenset[End] = frozenset()
    moved_files: Mapping[End, End] = field(default_factory=dict)
    may_run: Mapping[End, tuple[Definition, ...]] = field(default_factory=dict)
    given_parameters: frozenset[tuple[int, str]] = frozenset()
    generators: frozenset[End] = frozenset()
    norms_over_replicas: bool = True
    narrow_regions: tuple[tuple[Path, int], ...] = ()
    makes_fused: bool = False
    host_draws: frozenset[End] = frozenset()
    host_drawing: frozenset[End] = frozenset()
    growing: Mapping[End, Growing] = field(default_factory=dict)
    shifting: Mapping[End, bool] = field(default_factory=dict)
    run_without_accelerator: bool = False
    extensions: frozenset[str] = frozenset()
    host_tensors: Mapping[End, str] = field(default_factory=dict)
    mixed_groups: Mapping[End, str] = field(default_factory=dict)
    held_by_some: frozenset[End] = frozenset()
    kept_states: Mapping[End, str] = field(default_factory=dict)
    text_parts: Mapping[int, frozenset[int | str]] = field(default_factory=dict)
    host_saves: frozenset[End] = frozenset()
    kept_imports: frozenset[str] = frozenset()
    reexported: Mapping[str, str] = field(default_factory=dict)
    attributes_read: frozenset[str] = frozenset()
    whole: bool = False
    imported: bool = False
    named_elsewhere: frozenset[str] = frozenset()
    logs_elsewhere: bool = False
    set_elsewhere: frozenset[str] = frozenset()
    counts_read: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options_read: frozenset[str] = frozenset()
    properties: Mapping[End, tuple[Definition, ...]] = field(default_factory=dict)
    own_flags: frozenset[End] = frozenset()
    declared_tensors: Mapping[End, bool] = field(default_factory=dict)
    loaded_modules: Mapping[End, str] = field(default_factory=dict)
    loads_states: bool = False

    @property
    def run_on_accelerator(self) -> bool:
        """Whether a loop of the file runs on an accelerator, by moves in any file."""
        return bool(self.marked) or any(self.on_accelerator.values())

    def outside(self, name: str) -> str:
        """Return the imported `name`, or the external name if a module of the project re-exports it."""
        head = name if self.reexported else ""
        while head and head not in self.reexported:
            head = head.rpartition(".")[0]
        return self.reexported[head] + name[len(head) :] if head else name

    def is_local(self, name: str) -> bool:
        """Whether the dotted `name`, as imported, is a module of the user's project, or a part of one."""
        while name and name not in self.local:
            name = name.rpartition(".")[0]
        return bool(name)


@dataclass(frozen=True)
class AnalyzedProject:
    """An analyzed project.

    Args:
        analysis: the project.
        calls: what the calls of its files run.
    """

    analysis: Analysis
    calls: Mapping[Path, ModuleCalls]


def analyzed(project: Project, known: Iterable[AnalyzedProject] = ()) -> AnalyzedProject:
    """Return `project`, analyzed; its files' calls are empty unless it is one of the `known` projects."""
    same = (others for others in known if others.analysis.project.is_same(project))
    return next(same, None) or AnalyzedProject(Analysis(project), {})


def calls_of_script(
    script: Path, data: bytes, known: Iterable[AnalyzedProject] = ()
) -> ModuleCalls:
    """Return what the calls of `script`, whose content is `data`, run, its local modules included.

    Args:
        script, data: the file, and its content.
        known: projects that are already analyzed.
    """
    project = Project.of_script(script, data=data)
    return calls_of_file(analyzed(project, known).analysis, script, alone=True)


def calls_of_file(analysis: Analysis, path: Path, *, alone: bool = False) -> ModuleCalls:
    """Return what the calls of the file `path` of an analyzed project run.

    Args:
        analysis: the project.
        path: the file.
        alone: whether only this file of the project is rewritten.
    """
    scope = analysis.scopes.get(path.resolve())
    if scope is None:
        return ModuleCalls(unread=True)
    several = len(analysis.scopes) > 1
    loops = [region for region in _regions(analysis, scope) if region in analysis.step_loops]
    effects: dict[End, Effect] = {}
    definitions: dict[End, tuple[Definition, ...]] = {}
    later: dict[End, tuple[Definition, ...]] = {}
    obstacles: dict[End, str] = {}
    for region in _regions(analysis, scope):
        for call, _ in region.calls:
            ran = analysis.running[call]
            end = _end(call, scope.module)
            if ran.functions:
                definitions[end] = tuple(_definition(f, analysis, ran.bound) for f in ran.functions)
            if ran.later:
                later[end] = tuple(_definition(f, analysis) for f in ran.later)
            if ran.obstacle:
                obstacles[end] = ran.obstacle
            elif region not in analysis.captured and (effect := analysis.effect(call)):
                effects[end] = effect
    for region in (loop for loop in loops if loop.marked):
        for call, effect in registries_of(analysis).marked(region):
            effects[_end(call, scope.module)] = effect
    lines = frozenset(region.loop.lineno for region in loops if region.loop is not None)
    marked = frozenset(r.loop.lineno for r in loops if r.marked and r.loop is not None)
    loads = _spells(analysis, b"load")
    launches_xla = any(
        word in module.data for module in analysis.project.modules.values() for word in LAUNCH_WORDS
    )
    return ModuleCalls(
        effects,
        definitions,
        later,
        lines,
        marked,
        _unused_marks(analysis, scope),
        _open_loops(analysis, scope),
        obstacles,
        frozenset(_local(analysis, scope)),
        ties_of(analysis).of_file(path.resolve(), alone),
        frozenset(f.line for f in launching_of(analysis).functions if f.module is scope.module),
        frozenset(_early_seeds(analysis, scope)) if alone else frozenset(),
        {_end(node, scope.module): kind for node, kind in devices_of(analysis, scope)},
        spelled_devices(analysis).get(scope.module.path, frozenset()),
        {**reexports_of(analysis).starred(scope), **dict(analysis.evaluator.from_outside(scope))}
        if scope.stars
        else {},
        scope.module.path in _give_all(analysis),
        dict(_on_accelerator(analysis, scope)),
        dict(_saves(analysis, scope, alone)),
        _saved_by_first(analysis, scope) if not alone else {},
        frozenset(_joins(analysis, scope)),
        all_first_attributes(analysis),
        frozenset(_running(analysis, scope, first_functions(analysis))),
        optimizers_of(analysis).of_file(scope, alone),
        frozenset(_running(analysis, scope, programs_of(analysis).training)),
        frozenset(_running(analysis, scope, programs_of(analysis).movers)),
        dict(_on_cpu(analysis, scope)),
        led_of(analysis).get(scope.module.path),
        is_distributed_training(analysis, scope),
        launching_of(analysis).led_by(scope),
        frozenset(_running(analysis, scope, programs_of(analysis).readers)),
        frozenset(_running(analysis, scope, acting_of(analysis))),
        frozenset(_running(analysis, scope, ending_of(analysis)))
        if any(_spells(analysis, word) for word in STOPPING)
        else frozenset(),
        frozenset(_meeting(analysis, scope)),
        unset_attributes(analysis),
        frozenset(_running(analysis, scope, loading_of(analysis))) if loads else frozenset(),
        frozenset(_end(node, scope.module) for node in models_of(analysis, scope)),
        frozenset(_end(call, scope.module) for call in moved_inputs(analysis, scope)),
        frozenset(_end(call, scope.module) for call in placed_models(analysis, scope)),
        analysis.evaluator.options_set.get(scope.module.path, frozenset()),
        randomness_of(analysis).of_file(scope, alone),
        imports_ranks=scope.module.path in importing_ranks(analysis),
        imported_before_launch=scope.module.path in launching_of(analysis).imported,
        rivals=rivals_of(analysis, scope),
        processes=frozenset(
            _end(call, scope.module)
            for call in starting_replicas(analysis).get(scope.module.path, ())
        ),
        handlers=handlers_in_threads(analysis, scope) if _spells(analysis, b"signal") else {},
        counted=frozenset(_running(analysis, scope, counting_generators(analysis)))
        if _spells(analysis, b"yield")
        else frozenset(),
        sampling=frozenset(_running(analysis, scope, samplers_of(analysis))),
        forwarding=frozenset(_running(analysis, scope, forwards_of(analysis))),
        iterated=frozenset(
            _end(node, scope.module)
            for of in (scope, *scope.functions)
            for node in iterated(analysis, of)
        ),
        evaluating=frozenset(
            _running(
                analysis,
                scope,
                (samplers_of(analysis) | batch_evaluators(analysis)) & gradient_free(analysis),
            )
        ),
        apart=frozenset(
            name
            for name, path in apart_attributes(analysis).items()
            if path != scope.module.path and name.encode() in scope.module.data
        ),
        returning_apart=frozenset(_running(analysis, scope, apart_functions(analysis))),
        sampled=dict(_sampled(analysis, scope)),
        gradient_free=frozenset(f.line for f in scope.functions if f in gradient_free(analysis)),
        unread_imports=tuple(analysis.project.unread_imports) if alone else (),
        accelerated_imports=tuple(programs_of(analysis).accelerated_imports(scope.module.path))
        if alone
        else (),
        replicated=_is_replicated(analysis)
        and _is_replicated(analysis, _program(analysis, scope.module.path)),
        joins_group=any(may_join(module.data) for module in analysis.project.modules.values()),
        launches_ranks=launching_of(analysis).launches,
        launches_xla=launches_xla,
        draws_unseeded=launches_xla and randomness_of(analysis).draws_unseeded(scope),
        ranks_set=ranks_set_for(analysis, scope.module.path)
        if launches_xla and several
        else frozenset(),
        joining=frozenset(f.line for f in scope.functions if f in joining_of(analysis)),
        broadcast=_broadcast(analysis, scope.module),
        accelerated=programs_of(analysis).is_accelerated(scope.module.path),
        loading_parts=dict(_loading_parts(analysis, scope)) if loads else {},
        divided_saves=dict(_divided_saves(analysis, scope)),
        optional_groups={
            _end(call, scope.module): test
            for call, test in optional_groups(analysis).get(scope.module.path, {}).items()
        },
        saves_in_threads=saves_in_threads(analysis).get(scope.module.path, {})
        if _is_replicated(analysis) and any(_spells(analysis, word) for word in STARTING)
        else {},
        first_parameters={
            (function.line, name): alone
            for (function, name), alone in first_parameters(analysis).items()
            if function.module is scope.module
        },
        uneven_turns={
            _end(node, scope.module): turns
            for node, turns in (
                uneven_turns(analysis).get(scope.module.path, {})
                if _is_replicated(analysis)
                else {}
            ).items()
        },
        whole_steps=frozenset() if alone else _whole_steps(analysis, scope),
        nesting=frozenset() if alone else frozenset(_nesting(analysis, scope)),
        feeding=frozenset(f.line for f in scope.functions if f in feeding_of(analysis)),
        drawing=frozenset(_running(analysis, scope, drawing_of(analysis))),
        of_libraries=frozenset(_of_libraries(analysis, scope)),
        collating=frozenset(f.line for f in scope.functions if f in collating_of(analysis)),
        collating_settings={
            f.line: settings_given(f, analysis)
            for f in scope.functions
            if f.owner is not None and f in collating_of(analysis)
        },
        gathering=frozenset(f.line for f in scope.functions if f in gathering_of(analysis)),
        unvalidated=_is_unvalidated(analysis),
        own_operators=_own_operators(analysis),
        drawn_attributes=frozenset(
            (class_.name, name)
            for class_, name in drawn_attributes(analysis, _is_replicated(analysis))
            if class_.top is scope
        ),
        unprepared=dict(_unprepared(analysis, scope))
        if scope.module.path in led_of(analysis)
        else {},
        unwrapped=frozenset(
            _end(node, scope.module)
            for node in (
                unwrapped_modules(analysis, scope) if scope.module.path in led_of(analysis) else ()
            )
        ),
        loading_to_device=frozenset(
            _end(call, scope.module)
            for call in (
                loads_to_accelerator(analysis, scope)
                if scope.module.path in led_of(analysis)
                else ()
            )
        ),
        drawn_weights={
            _end(call, scope.module): why
            for call, why in (
                drawn_weights(analysis, scope)
                if _spells(analysis, b"accelerate") or _spells(analysis, b"transformers")
                else ()
            )
        },
        state_saves=frozenset(
            _end(call, scope.module) for call in saves_of(analysis).of_state(scope)
        ),
        host_transforms={
            _end(call, scope.module): name for call, name in host_transforms(analysis, scope)
        },
        waiting=frozenset(_running(analysis, scope, waiting_of(analysis))),
        given_moving=frozenset(
            _end(call, scope.module) for call in given_moving_models(analysis, scope)
        ),
        wrapping=frozenset(_running(analysis, scope, wrapping_of(analysis))),
        running_wrapped=dict(_running_wrapped(analysis, scope)),
        of_index=(of_index := frozenset(_of_index(analysis, scope))),
        moved_files={
            _end(_key(statement), scope.module): _end(save, scope.module)
            for statement, save in saves_of(analysis).moved_files(scope).items()
        },
        group_ranks=frozenset(
            _end(call, scope.module)
            for call in (group_ranks(analysis, scope) if _makes_groups(analysis) else ())
        ),
        device_numbers=device_numbers(analysis).get(scope.module.path, frozenset())
        if (counted := _is_replicated(analysis) or _spells(analysis, b"import shims"))
        else frozenset(),
        devices_or_numbers=frozenset(
            _end(node, scope.module)
            for node in (devices_or_numbers(analysis, scope) if counted else ())
        ),
        may_run={
            _end(call, scope.module): tuple(_definition(method, analysis) for method in methods)
            for call, methods in registries_of(analysis).may_run(scope).items()
        },
        given_parameters=frozenset(
            (function.line, name)
            for function, name in (given_parameters(analysis, scope) if of_index else ())
        ),
        host_tensors=dict(_host_tensors(analysis, scope)) if _joins_by_itself(analysis) else {},
        mixed_groups=dict(_mixed_groups(analysis, scope)) if _joins_by_itself(analysis) else {},
        extensions=extensions_of(analysis) if _builds(analysis) else frozenset(),
        run_without_accelerator=programs_of(analysis).is_run_without(scope.module.path),
        norms_over_replicas=_norms_over_replicas(analysis),
        narrow_regions=narrow_regions(analysis) if _spells(analysis, b"autocast") else (),
        makes_fused=_spells(analysis, b"fused") and makes_fused(analysis),
        host_draws=_ends_of(host_draws, analysis, scope),
        host_drawing=_ends_of(host_drawing, analysis, scope),
        growing=_growing(analysis, scope) if _is_of_xla(analysis) else {},
        shifting=_shifting(analysis, scope) if _is_replicated(analysis) else {},
        generators=frozenset(_end(call, scope.module) for call in generators_of(analysis, scope)),
        kept_states={
            _end(call, scope.module): where
            for call, where in (kept_states(analysis, scope) if _loads_states(analysis) else ())
        },
        held_by_some=frozenset(
            _end(node, scope.module)
            for node in (held_by_some(analysis, scope) if _is_replicated(analysis) else ())
        ),
        text_parts={
            function.line: parts
            for function, parts in (text_parts(analysis) if collating_of(analysis) else {}).items()
            if function.module is scope.module and parts
        },
        host_saves=frozenset(
            _end(call, scope.module) for call in saves_of(analysis).of_host(scope)
        ),
        kept_imports=reexports_of(analysis).kept_imports(scope) if several else frozenset(),
        reexported=reexports_of(analysis).of_file(scope) if several else {},
        attributes_read=_attributes_read(analysis, scope.module),
        imported=bool(analysis.project.importers.get(scope.module.path)),
        named_elsewhere=_named_elsewhere(analysis, scope),
        logs_elsewhere=b"basicConfig" in scope.module.data and _logs_elsewhere(analysis, scope),
        set_elsewhere=_set_elsewhere(analysis, scope),
        counts_read={
            count: tuple(dict.fromkeys(at_line(line, path) for path, line in places))
            for count, places in counts_read(analysis.project, scope.module).items()
            if places
        },
        options_read=options_read(analysis.project, scope.module),
        properties=dict(_properties(analysis, scope)),
        own_flags=frozenset(_own_flags(analysis, scope)),
        declared_tensors={
            _end(node, scope.module): boolean for node, boolean in declared_tensors(analysis, scope)
        },
        loaded_modules={
            _end(call, scope.module): name for call, name in loaded_modules(analysis, scope)
        },
        loads_states=_spells(analysis, b".load_state_dict("),
        whole=analysis.project.whole and not analysis.project.unread,
    )


def _properties(
    analysis: Analysis, scope: ModuleScope
) -> Iterator[tuple[End, tuple[Definition, ...]]]:
    """Yield the attributes that a file reads and that are properties, with the functions that these are."""
    names = {
        function.name
        for top in analysis.scopes.values()
        for function in top.functions
        if function.owner is not None and function.is_a("property", "cached_property")
    }
    for name in sorted(names & scope.taken.keys()):
        for node, around in scope.taken[name]:
            definitions = tuple(
                _definition(f, analysis) for f in analysis.evaluator.properties(node, around)
            )
            if definitions:
                yield _end(node, scope.module), definitions


def _own_flags(analysis: Analysis, scope: ModuleScope) -> Iterator[End]:
    """Yield the attributes `is_cuda` of a file that belong to an object of the project.

    A tensor's own cannot be set: what a class, or a statement anywhere in the project, binds is another one.
    """
    for node, around in scope.taken.get("is_cuda", ()):
        bound = analysis.evaluator.members_of(node.value, node.attr, around)
        if next(iter(bound), None) is not None:
            yield _end(node, scope.module)


def _attributes_read(analysis: Analysis, module: SourceModule) -> frozenset[str]:
    """Return what a file sets and some file reads; nothing where it makes and sets no parameters."""
    if SETS_PARAMETERS.search(module.data) is None:
        return frozenset()
    return set_attributes(module) & read_attributes(analysis.project)


def _logs_elsewhere(analysis: Analysis, scope: ModuleScope) -> bool:
    """Whether another file of the project sets up the log."""
    return any(
        b"logging.basicConfig(" in module.data
        for path, module in analysis.project.modules.items()
        if path != scope.module.path
    )


def _named_elsewhere(analysis: Analysis, scope: ModuleScope) -> frozenset[str]:
    """Return the functions of a file whose names stand in other files; nothing where no file imports it."""
    if not analysis.project.importers.get(scope.module.path):
        return frozenset()
    files = _files_by_name(analysis)
    names = {function.name for function in scope.functions}
    return frozenset(name for name in names if files.get(name, set()) - {scope.module.path})


@lru_cache(maxsize=2)
def _files_by_name(analysis: Analysis) -> dict[str, set[Path]]:
    """Return the files that use each name of a function of the project: as a variable, attribute or text."""
    functions = {f.name for scope in analysis.scopes.values() for f in scope.functions}
    files: dict[str, set[Path]] = {}
    for path, module in analysis.project.modules.items():
        for node in module.nodes:
            match node:
                case (
                    ast.Name(id=name)
                    | ast.Attribute(attr=name)
                    | ast.alias(name=name)
                    | ast.Constant(value=str(name))
                ) if name in functions:
                    files.setdefault(name, set()).add(path)
    return files


def _set_elsewhere(analysis: Analysis, scope: ModuleScope) -> frozenset[str]:
    """Return the variables of a file whose names are those of attributes that its importers set."""
    importers = analysis.project.importers.get(scope.module.path, set()) - {scope.module.path}
    modules = (analysis.project.modules[path] for path in importers)
    names = {name for module in modules for name in set_attributes(module)}
    return frozenset(names.intersection(scope.bindings))


def _unprepared(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[End, str]]:
    for call, batch, path, line in unprepared_batches(analysis, top):
        where = at_line(line, None if path == top.module.path else path)
        yield _end(call, top.module), f"`{batch}` comes from the loader of {where}"


def _of_libraries(analysis: Analysis, top: ModuleScope) -> Iterator[End]:
    for region in _regions(analysis, top):
        for call, scope in region.calls:
            named = call.func
            while isinstance(named, ast.Attribute):
                named = named.value
            if not isinstance(scope, Function) or not isinstance(named, ast.Name):
                continue
            if named.id not in scope.parameters:
                continue
            values = analysis.evaluator.values(call.func, scope)
            if values and all(
                isinstance(value, External) and is_of_known_package(value.name) for value in values
            ):
                yield _end(call, top.module)


@lru_cache(maxsize=2)
def _is_unvalidated(analysis: Analysis) -> bool:
    """Whether a file of the project calls `Distribution.set_default_validate_args(False)`."""
    return any(UNVALIDATED.search(scope.module.data) for scope in analysis.scopes.values())


@lru_cache(maxsize=2)
def _own_operators(analysis: Analysis) -> frozenset[str]:
    """Return the operators of tensors that classes of the project have as methods of their own."""
    return OPERATORS.intersection(
        name
        for scope in analysis.scopes.values()
        for class_ in scope.classes
        for name in class_.bindings
    )


def _whole_steps(analysis: Analysis, top: ModuleScope) -> frozenset[int]:
    functions = nested_of(analysis).functions
    return frozenset(function.line for function in top.functions if function in functions)


def _nesting(analysis: Analysis, top: ModuleScope) -> Iterator[End]:
    """Yield the calls of a file that run a part of a step with steps of its own."""
    calls = nested_of(analysis).calls
    for region in _regions(analysis, top) if calls else ():
        for call, _ in region.calls:
            if call in calls:
                yield _end(call, top.module)


def _definition(
    function: Function, analysis: Analysis, bound_counts: Mapping[Function, int] | None = None
) -> Definition:
    known, before = _definitions(analysis), (bound_counts or {}).get(function, 0)
    key = function, before
    if key in known:
        return known[key]
    calls = function.top.names_called[function]
    known[key] = Definition(
        function.module.path,
        function.line,
        function.name,
        before,
        calls,
        bool(function.returns),
        function in programs_of(analysis).readers,
        function in combining_of(analysis),
        # Asked of functions in other files only.
        used_by_some(analysis).get(function, frozenset())
        if len(analysis.scopes) > 1
        else frozenset(),
        parameters_handed_back(function, analysis.evaluator),
        tuple(function.parameters[int(function.parameters[:1] in (["self"], ["cls"])) :]),
        takes_loss(function, analysis),
        masks_handed_back(function) if len(analysis.scopes) > 1 else frozenset(),
        frozenset(argument.arg for argument in function.arguments.kwonlyargs),
        sizes_handed_back(function) if len(analysis.scopes) > 1 else frozenset(),
    )
    return known[key]


@lru_cache(maxsize=2)
def _definitions(analysis: Analysis) -> dict[tuple[Function, int], Definition]:
    """Return what is known of the functions that calls run, as far as anything has asked for them."""
    return {}


def _running(analysis: Analysis, top: ModuleScope, functions: Set[Scope]) -> Iterator[End]:
    """Yield the calls of a file that run one of `functions`."""
    for region in _regions(analysis, top) if functions else ():
        for call, _ in region.calls:
            if not functions.isdisjoint(analysis.running[call].functions):
                yield _end(call, top.module)


def _running_wrapped(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[End, str]]:
    """Yield the calls of a file that run a wrapped model by a method of another file, with that forward."""
    forwarding = running_wrapped_of(analysis)
    for region in _regions(analysis, top) if forwarding else ():
        for call, _ in region.calls:
            for function in analysis.running[call].functions:
                if function in forwarding and function.module is not top.module:
                    runs, forward = forwarding[function]
                    yield _end(call, top.module), at_line(forward.lineno, runs.module.path)


def _meeting(analysis: Analysis, top: ModuleScope) -> Iterator[End]:
    """Yield the calls of a file that run a function in which all replicas meet."""
    for call, at in analysis.calls_in(top) if meeting_of(analysis) else ():
        if runs_meeting(call, at, analysis):
            yield _end(call, top.module)


def _loading_parts(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[End, frozenset[int]]]:
    """Yield the calls of a file whose result is a tuple with parts of a checkpoint, and where in it."""
    parts = loaded_parts_of(analysis)
    for region in _regions(analysis, top) if parts else ():
        for call, _ in region.calls:
            ran = [parts[f] for f in analysis.running[call].functions if f in parts]
            if ran:
                yield _end(call, top.module), frozenset().union(*ran)


def _divided_saves(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[End, Share]]:
    """Yield the saves of a file whose path depends on the replica."""
    for call, share in divided_saves(analysis, top):
        if _is_replicated(analysis) or not share.by_name:
            yield _end(call, top.module), share


@lru_cache(maxsize=2)
def _joins_by_itself(analysis: Analysis) -> bool:
    """Whether a file of a project joins a process group, by torch's function."""
    modules = analysis.project.modules.values()
    return any(
        b"init_process_group" in module.data and BACKENDS.search(module.data) is not None
        for module in modules
    )


@lru_cache(maxsize=2)
def _builds(analysis: Analysis) -> bool:
    """Whether a file of a project names what builds extensions of torch."""
    return any(b"cpp_extension" in module.data for module in analysis.project.modules.values())


# What asks for the attributes of a class, or sets one.
OF_ATTRIBUTES = frozenset({"delattr", "getattr", "hasattr", "setattr"})


@lru_cache(maxsize=2)
def _loads_states(analysis: Analysis) -> bool:
    """Whether a file of a project has a `load_state_dict` of its own."""
    return any(b"def load_state_dict" in s.module.data for s in analysis.scopes.values())


@lru_cache(maxsize=2)
def _norms_over_replicas(analysis: Analysis) -> bool:
    """Whether a project does more with SyncBatchNorm than to ask whether a layer is one."""
    modules = analysis.project.modules.values()
    if any(CONVERTS.search(module.data) for module in modules):
        return True
    return any(_mentions_norm(module.tree) for module in modules if b"SyncBatchNorm" in module.data)


def _mentions_norm(tree: ast.AST) -> bool:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.For) and _only_sets_attributes(node):
            waiting += [*node.body, *node.orelse]
            continue
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            "isinstance",
            "issubclass",
        ):
            waiting += node.args[:1]
            continue
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr":
            waiting += node.args[1:]
            continue
        if isinstance(node, ast.Compare) and any(
            ast.unparse(side).startswith("type(") or getattr(side, "attr", "") == "__class__"
            for side in (node.left, *node.comparators)
        ):
            continue
        if "SyncBatchNorm" in (
            getattr(node, "id", ""),
            getattr(node, "attr", ""),
            getattr(node, "value", ""),
        ):
            return True
        waiting += ast.iter_child_nodes(node)
    return False


def _only_sets_attributes(loop: ast.For) -> bool:
    """Whether a loop over classes only sets attributes of them: `for c in (A, B): setattr(c, …)`."""
    if not isinstance(loop.target, ast.Name) or not isinstance(loop.iter, ast.Tuple | ast.List):
        return False
    inside = [node for statement in loop.body for node in walk(statement)]
    name = loop.target.id
    set_on = {
        id(node.args[0])
        for node in inside
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in OF_ATTRIBUTES
        and node.args
    }
    mentions = [node for node in inside if isinstance(node, ast.Name) and node.id == name]
    return bool(mentions) and all(id(node) in set_on for node in mentions)


def _host_tensors(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[End, str]]:
    """Yield the tensors of the CPU that collectives of a file are given, with what puts them there."""
    for tensor in given_of(analysis).get(top.module.path, ()):
        if tensor.where.host:
            path, line = min(tensor.where.host)
            where = at_line(line, None if path == top.module.path else path)
            yield _end(tensor.node, top.module), where


def _mixed_groups(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[End, str]]:
    """Yield the calls of a file that join a group for the CPU too, with a tensor that may be there."""
    unknown = [
        (path, tensor)
        for path, tensors in given_of(analysis).items()
        for tensor in tensors
        if not tensor.where.host
    ]
    here = [node for node, path in mixed_groups(analysis).items() if path == top.module.path]
    for call in here if unknown else ():
        run = run_with(analysis, top.module.path)
        related = [(path, tensor) for path, tensor in unknown if path in run]
        if related:
            path, tensor = min(related, key=lambda pair: (str(pair[0]), pair[1].node.lineno))
            where = at_line(tensor.node.lineno, path)
            yield _end(call, top.module), f"`{ast.unparse(tensor.node)}` ({where})"


def _joins(analysis: Analysis, top: ModuleScope) -> Iterator[End]:
    """Yield the calls of a file by which a function of another one joins the process group."""
    joining = joining_of(analysis)
    for region in _regions(analysis, top) if joining else ():
        for call, _ in region.calls:
            functions = analysis.running[call].functions
            if any(
                function.module is not top.module and joins_by(call, function, joining, analysis)
                for function in functions
            ):
                yield _end(call, top.module)


def _saves(analysis: Analysis, top: ModuleScope, alone: bool) -> Iterator[tuple[End, Saved]]:
    """Yield the calls of a file that save by a function of another one."""
    for region in _regions(analysis, top):
        for call, scope in region.calls:
            saved = saves_of(analysis).of_call(call, scope)
            if saved is not None:
                yield _end(call, top.module), replace(saved, moves=saved.moves and not alone)


def _saved_by_first(analysis: Analysis, scope: ModuleScope) -> dict[int, bool]:
    moved = saves_of(analysis).moved
    return {f.line: moved[f] for f in scope.functions if f in moved}


_OF_REPLICAS = re.compile(
    rb"torch\.distributed|from[ \t]+torch[ \t]+import[^\n]*\bdistributed\b|DistributedDataParallel"
    rb"|xla_model|torch_xla\.launch"
)
# An import of one line, and the names that it may bind: the last word of each of its parts.
_IMPORT = re.compile(rb"^[ \t]*(?:from|import)[ \t][^(\\\n]*$", re.MULTILINE)
_BOUND = re.compile(rb"(\w+)[ \t]*(?:,|;|#|\r|$)")


def _program(analysis: Analysis, path: Path) -> frozenset[Path] | None:
    """Return the files of the scripts that run a file, by their imports; None for the whole project.

    All scripts are known only where each file that nothing imports has a main guard: others may be loaded by
    their name, as those of a registry are.
    """
    importers, modules = analysis.project.importers, analysis.project.modules
    leading = list(closure([path], lambda file: importers.get(file, ())))
    first = [file for file in leading if not importers.get(file)]
    if not first or any(b"__main__" not in modules[f].data for f in first if f in modules):
        return None
    return frozenset(
        closure(
            leading,
            lambda file: analysis.project.imports(modules[file]) if file in modules else (),
        )
    )


@lru_cache(maxsize=8)  # files of one script share the answer
def _is_replicated(analysis: Analysis, files: frozenset[Path] | None = None) -> bool:
    """Whether any of the files names torch.distributed, DDP or torch_xla's replicas; None: of the project.

    An import of one line, whose name nothing uses, does not count.
    """
    texts = [
        scope.module.data
        for path, scope in analysis.scopes.items()
        if files is None or path in files
    ]
    if not any(map(_OF_REPLICAS.search, texts)):
        return False
    rests = [_IMPORT.sub(b"", text) for text in texts]
    if any(map(_OF_REPLICAS.search, rests)):
        return True
    imports = [
        line for text in texts for line in _IMPORT.findall(text) if _OF_REPLICAS.search(line)
    ]
    names = {name for line in imports for name in _BOUND.findall(line)}
    # The name may be used in a file that has it from the one that imports it.
    return any(b"*" in line for line in imports) or any(
        re.search(rb"\b" + name + rb"\b", rest) for name in names for rest in rests
    )


def _broadcast(analysis: Analysis, module: SourceModule) -> frozenset[str]:
    return broadcast_parts(analysis) if NAMES_INFINITE.search(module.data) else frozenset()


@lru_cache(maxsize=2)
def _give_all(analysis: Analysis) -> frozenset[Path]:
    """Return the files of a project from which another one imports `*`."""
    places = (
        analysis.project.find(scope.module.path, star.module, star.level)
        for scope in analysis.scopes.values()
        for star in scope.stars
    )
    files = (file_of(place) for place in places if place is not None)
    return frozenset(file for file in files if file is not None)


def _on_accelerator(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[int, bool | None]]:
    """Yield the line of each loop of a file that trains or evaluates, and whether on an accelerator."""
    forwards = batch_evaluators(analysis)
    free = forwards & gradient_free(analysis)
    for scope in (top, *top.functions):
        for root in scope.roots:
            for region in analysis.regions(root):
                if region.loop is not None and (
                    region in analysis.step_loops
                    or may_evaluate(analysis, region, top, forwards, free)
                ):
                    where = programs_of(analysis).on_accelerator(scope, region)
                    yield region.loop.lineno, where


def _sampled(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[int, bool | None]]:
    """Yield the line of each loop of functions that take no gradients, and whether on an accelerator."""
    for scope in top.functions:
        for region in analysis.regions(scope.region) if scope in gradient_free(analysis) else ():
            if region.loop is not None:
                where = programs_of(analysis).on_accelerator(scope, region)
                yield region.loop.lineno, where


def _on_cpu(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[int, int]]:
    """Yield the line of each loop marked for the CPU, with the line of a move that contradicts it."""
    if b"migrate:" not in top.module.data:
        return
    for scope in (top, *top.functions):
        for region in (inner for root in scope.roots for inner in analysis.regions(root)):
            if region.loop is not None and region.on_cpu:
                yield region.loop.lineno, programs_of(analysis).moved_in(scope, region)


def _early_seeds(analysis: Analysis, scope: ModuleScope) -> Iterator[End]:
    """Yield the calls before the launch that run a seeding function of another file."""
    launching = launching_of(analysis)
    for call, at in launching.calls():
        functions = analysis.running[call].functions
        elsewhere = any(function.module is not scope.module for function in functions)
        if at.module is scope.module and elsewhere and launching.seeds(call):
            yield _end(call, scope.module)


def _unused_marks(analysis: Analysis, scope: ModuleScope) -> dict[int, str]:
    """Return the lines of the marks that make no step, and why."""
    marks = dict.fromkeys(scope.unused_marks, "no loop starts on this line or right below it")
    for region in _regions(analysis, scope):
        if region.marked and region not in analysis.step_loops:
            why = "a loop around this one is marked, or captured as a CUDA graph: it holds no step"
            marks |= dict.fromkeys(region.marks, why)
    return marks


def _of_index(analysis: Analysis, scope: ModuleScope) -> Iterator[End]:
    if _is_replicated(analysis):
        yield from (_end(node, scope.module) for node in indices_of(analysis, scope))


def _key(statement: ast.stmt) -> ast.expr:
    """Return the condition of a test, or the expression of another statement."""
    assert isinstance(statement, ast.If | ast.Expr)
    return statement.test if isinstance(statement, ast.If) else statement.value


def _open_loops(analysis: Analysis, scope: ModuleScope) -> dict[int, str]:
    """Return the lines of the loops that may train, and what to do about each."""
    loops = dict(unfollowed_of(analysis, scope))
    loops |= halves_of(analysis, scope)
    moves = bool(programs_of(analysis).moving_files)  # otherwise its classes train on the host
    loops |= {
        loop.line: _by_hand(loop)
        for loop in registries_of(analysis).loops(scope)
        if moves or not loop.by_method
    }
    said = {line for line, moved in _on_cpu(analysis, scope) if not moved}
    return {line: why for line, why in loops.items() if line not in said}


def _by_hand(hidden: Hidden) -> str:
    """Return what to do about a loop that trains through a class chosen by name."""
    more = f" and {len(hidden.classes) - MOST_CLASSES} more" * (len(hidden.classes) > MOST_CLASSES)
    names = f"{', '.join(hidden.classes[:MOST_CLASSES])}{more}"
    seen = f"trains in {names}" if names else "may train"
    return (
        f"`{hidden.call}` {seen}, and which class it is of is decided while the script runs: "
        "if one turn of this loop is one step, write `# migrate: step` above it, or put the calls that "
        "train in `with torch_xla.step():` by hand"
    )


def _local(analysis: Analysis, scope: ModuleScope) -> Iterator[str]:
    """Yield the modules that a file imports, absolutely, and that are files of the project."""
    for region in _regions(analysis, scope):
        for binding, _ in region.imports:
            if binding.level == 0:
                for name in (binding.module.partition(".")[0], binding.module):
                    place = analysis.project.find(scope.module.path, name)
                    if place is not None and file_of(place) is not None:
                        yield name


def _regions(analysis: Analysis, scope: ModuleScope) -> Iterator[Region]:
    for root in scope.all_roots:
        yield from analysis.regions(root)


def _shifting(analysis: Analysis, scope: ModuleScope) -> dict[End, bool]:
    draws = shifting_calls(analysis)
    here = analysis.calls_in(scope) if draws else ()
    return {_end(call, scope.module): draws[call] for call, _ in here if call in draws}


def _growing(analysis: Analysis, scope: ModuleScope) -> dict[End, Growing]:
    growing = growing_calls(analysis)
    here = analysis.calls_in(scope) if growing else ()
    return {_end(call, scope.module): growing[call] for call, _ in here if call in growing}


def _is_of_xla(analysis: Analysis) -> bool:
    """Whether the project has its steps: before a rewrite it has none to lack."""
    return _spells(analysis, b"torch_xla") or _spells(analysis, b"shims")


def _ends_of(
    find: Callable[[Analysis], Set[ast.Call]], analysis: Analysis, scope: ModuleScope
) -> frozenset[End]:
    """Return the ends of those calls of a file that are draws by a generator, or come to one."""
    if not _spells(analysis, b"multinomial"):
        return frozenset()
    ends = find(analysis)
    here = analysis.calls_in(scope) if ends else ()
    return frozenset(_end(call, scope.module) for call, _ in here if call in ends)


def _makes_groups(analysis: Analysis) -> bool:
    """Whether a file of a project makes, or gets, groups of some replicas."""
    return any(_spells(analysis, word) for word in (b"new_group", b"new_subgroups", b"get_group"))


@lru_cache(maxsize=64)
def _spells(analysis: Analysis, word: bytes) -> bool:
    """Whether a file of a project spells `word`."""
    return any(word in module.data for module in analysis.project.modules.values())


def _end(call: ast.expr, module: SourceModule) -> End:
    line, offset = call.end_lineno or 0, call.end_col_offset or 0
    return line, module.column(line, offset)
