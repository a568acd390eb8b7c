"""Written optimizers against torch's own: 20 updates on random gradients, in float64."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.utils import import_utils

from converters.optimizer.torch_rules import scale_by_radam
from migrate.train.errors import TrainError
from migrate.train.optimizer.check import check_updates
from migrate.train.optimizer.live import recorded_groups
from migrate.train.optimizer.recorded import (
    ParameterArray,
    RecordedClip,
    RecordedGroup,
    RecordedOptimizer,
)
from migrate.train.optimizer.write import write_optimizer
from migrate.train.optimizer_source import builder_name
from migrate.train.slice.text import ScriptText
from migrate.train.watch.calls import SeenCall
from migrate.train.watch.optimizers import OptimizerRecorder
from migrate.train.write.updates import optimizers_text
from tests.train.optimizer.test_schedules import CASES, record

ARRAYS = [
    ParameterArray(("embed", "embedding"), 2, ("embed.weight",)),
    ParameterArray(("h", "0", "kernel"), 2, ("h.0.weight",)),
    ParameterArray(("h", "0", "bias"), 1, ("h.0.bias",)),
    ParameterArray(("head", "kernel"), 2, ("head.weight",)),
    ParameterArray(("head", "bias"), 1, ("head.bias",)),
]
NAMES = tuple(name for array in ARRAYS for name in array.names)


def optimizer(cls, *groups, updates=3, **options):
    """Record of an optimizer over `NAMES`, or over groups of (names, options)."""
    divided = groups or ((NAMES, {}),)
    parameters = {name: torch.nn.Parameter(torch.zeros(1)) for name in NAMES}
    made = cls(
        [{"params": [parameters[n] for n in names], **more} for names, more in divided], **options
    )
    recorded = recorded_groups(made, {id(p): name for name, p in parameters.items()})
    rates = tuple(float(group.options["lr"]) for group in recorded)
    return RecordedOptimizer(
        f"{cls.__module__}.{cls.__qualname__}", recorded, (rates,) * updates, line=12
    )


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "dampening": (
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01},
    ),
    "maximize": (torch.optim.SGD, {"lr": 0.1, "maximize": True, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "foreach": True}),
    "adam with large eps": (torch.optim.Adam, {"lr": 0.01, "eps": 0.1}),
    "decoupled adam": (
        torch.optim.Adam,
        {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.95), "fused": True}),
    "adamw, maximize": (torch.optim.AdamW, {"lr": 0.01, "maximize": True}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    "amsgradw": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    "adagrad": (
        torch.optim.Adagrad,
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.2},
    ),
    "adagrad with large eps": (torch.optim.Adagrad, {"lr": 0.1, "eps": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "eps": 1e-3, "weight_decay": 0.1}),
    "centered": (
        torch.optim.RMSprop,
        {"lr": 0.01, "centered": True, "momentum": 0.9, "alpha": 0.9},
    ),
    "nadam": (torch.optim.NAdam, {"lr": 0.01, "weight_decay": 0.1}),
    "decoupled nadam": (
        torch.optim.NAdam,
        {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True, "momentum_decay": 0.1},
    ),
    "radam": (torch.optim.RAdam, {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-3}),
    "decoupled radam": (
        torch.optim.RAdam,
        {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True, "betas": (0.9, 0.9)},
    ),
    "adamax": (torch.optim.Adamax, {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-3}),
    "adadelta": (torch.optim.Adadelta, {"lr": 1.0, "weight_decay": 0.1}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_update_is_torchs(name):
    cls, options = OPTIMIZERS[name]
    recorded = optimizer(cls, **options)
    written = write_optimizer(recorded, ARRAYS)
    check = check_updates(written, recorded, ARRAYS)
    assert check.equal, (check, written.source)
    assert check.limit == 1e-8
    assert check.float32 < 1e-3


def test_radam_in_float32_is_torchs_when_it_begins_to_divide():
    # The length of its average is a difference of near numbers: with the default betas at the sixth step.
    rule = scale_by_radam(0.9, 0.999, 1e-8)
    update = jax.jit(rule.update)
    weight = torch.nn.Parameter(torch.zeros(30, dtype=torch.float64))
    theirs = torch.optim.RAdam([weight], lr=1.0)
    state = rule.init(jnp.zeros(30))
    generator = np.random.default_rng(0)
    for _ in range(12):
        gradient = generator.standard_normal(30, np.float32)
        before = weight.detach().clone()
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        theirs.step()
        ours, state = update(jnp.asarray(gradient), state)
        moved = (before - weight.detach()).numpy()
        assert np.linalg.norm(np.asarray(ours) - moved) < 1e-5 * np.linalg.norm(moved)


def test_another_update_is_seen():
    recorded = optimizer(torch.optim.AdamW, lr=0.01)
    written = write_optimizer(recorded, ARRAYS)
    for before, after in (("weight_decay=0.01", "weight_decay=0.0"), ("b2=0.999", "b2=0.99")):
        assert before in written.source
        wrong = dataclasses.replace(written, source=written.source.replace(before, after))
        assert not check_updates(wrong, recorded, ARRAYS).equal


DECAYS = ("embed.weight", "h.0.weight", "head.weight")
VECTORS = ("h.0.bias", "head.bias")


def test_decay_of_matrices_is_a_mask():
    recorded = optimizer(
        torch.optim.AdamW,
        (DECAYS, {"weight_decay": 0.1}),
        (VECTORS, {"weight_decay": 0.0}),
        lr=0.01,
        betas=(0.9, 0.95),
    )
    recorded = dataclasses.replace(
        recorded,
        clips=(RecordedClip("norm", 1.0, limit_name="grad_clip"),),
        accumulation=4,
        option_names={"weight_decay": "weight_decay"},
        source="torch.optim.AdamW(optim_groups, lr=learning_rate, betas=(beta1, args.beta2))",
    )
    written = write_optimizer(recorded, ARRAYS)
    assert "jax.tree.map(lambda p: p.ndim >= 2, params)" in written.source
    assert "b1=beta1, b2=beta2" in written.source
    assert "optax.clip_by_global_norm(grad_clip)" in written.source
    assert "weight_decay=weight_decay" in written.source
    assert "def accumulate(" in written.source
    check = check_updates(written, recorded, ARRAYS)
    assert check.equal
    assert check.float64 < 2e-6


def test_groups_with_rates_of_their_own_keep_their_names():
    recorded = optimizer(
        torch.optim.SGD,
        (("embed.weight", "h.0.weight", "h.0.bias"), {"lr": 0.001, "name": "backbone"}),
        (("head.weight", "head.bias"), {"lr": 0.1, "name": "head"}),
        lr=0.1,
        momentum=0.9,
    )
    written = write_optimizer(recorded, ARRAYS)
    assert '"backbone"' in written.source
    assert check_updates(written, recorded, ARRAYS).equal


def test_parameters_without_a_gradient_and_outside_of_groups_do_not_move():
    recorded = optimizer(torch.optim.AdamW, (NAMES[1:], {}), lr=0.01)
    recorded = dataclasses.replace(
        recorded, without_gradient=("head.bias",), clips=(RecordedClip("norm", 0.5),)
    )
    written = write_optimizer(recorded, ARRAYS)
    assert written.frozen == ("embed/embedding", "head/bias")
    assert check_updates(written, recorded, ARRAYS).equal


@pytest.mark.parametrize(
    "clips",
    [
        (RecordedClip("value", 0.5),),
        (RecordedClip("norm", 1e-3),),
        (RecordedClip("norm", 1.0, float("inf")),),
        (RecordedClip("norm", 1.0, 1.0),),
        (RecordedClip("norm", 1.0, names=DECAYS),),
        # Two parts of the model, each with a norm of its own.
        (RecordedClip("norm", 0.1, names=DECAYS), RecordedClip("norm", 0.2, names=NAMES[3:])),
    ],
)
def test_clipping_is_torchs(clips):
    recorded = dataclasses.replace(optimizer(torch.optim.SGD, lr=0.1), clips=clips)
    check = check_updates(write_optimizer(recorded, ARRAYS), recorded, ARRAYS)
    assert check.equal


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
        pytest.param(torch.optim.SGD, {"momentum": 0.9}, marks=pytest.mark.long),
        pytest.param(torch.optim.Adam, {"weight_decay": 0.1}, marks=pytest.mark.long),
        (torch.optim.AdamW, {}),
    ],
)
def test_momentum_of_one_cycle_moves(cls, options):
    recorded = record(CASES["one cycle"][0], rates=(0.1,), cls=cls, **options)
    arrays = [ParameterArray(("kernel",), 2, ("p0",))]
    written = write_optimizer(recorded, arrays)
    assert "inject_hyperparams" in written.source
    assert check_updates(written, recorded, arrays).equal


def test_two_parameters_of_different_groups_in_one_array_are_refused():
    recorded = optimizer(torch.optim.SGD, (NAMES[:2], {}), (NAMES[2:], {"lr": 0.2}), lr=0.1)
    arrays = [*ARRAYS[:1], ParameterArray(("h",), 2, ("h.0.weight", "head.weight")), *ARRAYS[2:]]
    with pytest.raises(TrainError, match=r"train.py:12: h holds .* different groups"):
        write_optimizer(recorded, arrays)


@pytest.fixture(scope="module")
def adafactor():
    """Adafactor of transformers, whose module imports torch_xla unless it is told not to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_utils, "USE_TORCH_XLA", "FALSE")
        from transformers.optimization import Adafactor
    return Adafactor


@pytest.mark.parametrize(
    "options",
    [
        {"scale_parameter": False, "weight_decay": 0.1},
        {"beta1": 0.9, "clip_threshold": 0.5, "eps": (1e-6, 0.1)},
    ],
)
@pytest.mark.long_cases("options1")
def test_adafactor_of_transformers(adafactor, options):
    recorded = optimizer(adafactor, lr=0.01, relative_step=False, **options)
    written = write_optimizer(recorded, ARRAYS)
    # optax keeps the decay of the second moment, a number, in float32
    assert check_updates(written, recorded, ARRAYS).float64 < 1e-7
    for before, after in (("decay_rate=0.8", "decay_rate=0.801"), ("rms(1.0)", "rms(1.01)")):
        source = written.source.replace(before, after).replace("rms(0.5)", "rms(0.51)")
        wrong = dataclasses.replace(written, source=source)
        assert check_updates(wrong, recorded, ARRAYS).float64 > 1e-6


def test_adafactor_needs_whole_tensors_and_a_rate(adafactor):
    recorded = optimizer(adafactor, lr=0.01, relative_step=False)
    joined = [*ARRAYS[1:], dataclasses.replace(ARRAYS[0], whole=False)]
    with pytest.raises(
        TrainError, match=r"train.py:12: .*Adafactor scales each tensor .* embed/embed"
    ):
        write_optimizer(recorded, joined)
    (group,) = recorded.groups
    relative = dataclasses.replace(group, options={**group.options, "relative_step": True})
    with pytest.raises(TrainError, match=r"train.py:12: Adafactor with relative_step"):
        write_optimizer(dataclasses.replace(recorded, groups=(relative,)), ARRAYS)
    both = dataclasses.replace(group, options={**group.options, "beta1": 0.9, "weight_decay": 0.1})
    with pytest.raises(TrainError, match="Adafactor with beta1 and weight_decay"):
        write_optimizer(dataclasses.replace(recorded, groups=(both,)), ARRAYS)


@pytest.mark.parametrize("cls", [torch.optim.ASGD, torch.optim.Rprop])
def test_optimizers_without_a_counterpart_are_refused(cls):
    with pytest.raises(TrainError, match=f"train.py:12: {cls.__name__} has no counterpart"):
        write_optimizer(optimizer(cls, lr=0.1), ARRAYS)


def test_option_that_changes_is_refused():
    recorded = dataclasses.replace(
        optimizer(torch.optim.SGD, lr=0.1), changed_options=("weight_decay",)
    )
    with pytest.raises(TrainError, match="weight_decay of the optimizer changes"):
        write_optimizer(recorded, ARRAYS)


class SGD(torch.optim.SGD):
    def __init__(self, params, trust=0.1, **options):
        super().__init__(params, **options)
        for group in self.param_groups:
            group["trust"] = trust


@pytest.mark.parametrize("name", ["", "timm.optim.nadam.NAdam", "bitsandbytes.optim.adamw.AdamW"])
def test_class_that_only_has_the_name_of_torchs_is_refused(name):
    recorded = optimizer(SGD, lr=0.1)
    recorded = dataclasses.replace(recorded, name=name or recorded.name)
    with pytest.raises(TrainError, match=r"train.py:12: .* has no counterpart"):
        write_optimizer(recorded, ARRAYS)


def test_lion_with_an_unknown_option_is_refused():
    options = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0}
    lion = RecordedOptimizer(
        "lion_pytorch.lion_pytorch.Lion", (RecordedGroup(NAMES, options),), ((1e-4,),), line=12
    )
    assert "optax.lion" in write_optimizer(lion, ARRAYS).source
    cautious = RecordedGroup(NAMES, {**options, "cautious_factor": 0.5})
    with pytest.raises(TrainError, match="with cautious_factor is unknown"):
        write_optimizer(dataclasses.replace(lion, groups=(cautious,)), ARRAYS)


SCRIPT = """
def configure(params):
    optimizer = SGD(
        params, lr=0.1
    )
    return optimizer


def main():
    optimizer = SGD(model.parameters(), lr=0.1)
    train(optimizer)


@wrapped
def decorated(params):
    return SGD(params, lr=0.1)


class Trainer:
    def configure(self):
        return SGD(self.params, lr=0.1)
"""


@pytest.mark.parametrize(
    ("call", "line", "name"),
    [
        (SeenCall("configure", 2), 3, "configure"),
        (SeenCall("main", 9), 10, ""),  # it returns another value
        (SeenCall("decorated", 14), 16, ""),
        (SeenCall("Trainer.configure", 20), 21, ""),
        (None, 3, ""),  # by a statement of the module
    ],
)
def test_function_that_builds_the_optimizer_is_the_one_that_ran(call, line, name):
    assert builder_name(ScriptText("train.py", SCRIPT), call, line) == name


def test_optimizer_that_a_function_builds_is_built_by_it():
    recorded = dataclasses.replace(optimizer(torch.optim.SGD, lr=0.1), builder="configure")
    source = write_optimizer(recorded, ARRAYS).source
    assert "def configure():" in source
    assert "    return optax.sgd(" in source
    assert "optimizer = configure()" in source
    namespace = {}
    exec(source, namespace)
    assert callable(namespace["optimizer"].update)
    clip = RecordedClip("norm", 1.0, line=20)
    clipped = write_optimizer(dataclasses.replace(recorded, clips=(clip,)), ARRAYS).source
    assert "clipping" in clipped.partition("def configure():")[2]
    assert "clipping" not in source


def test_two_optimizers_that_one_function_builds():
    facts = []
    for update, lr in (("critic", 0.1), ("actor", 0.2)):
        recorded = dataclasses.replace(optimizer(torch.optim.SGD, lr=lr), builder="configure")
        facts.append(SimpleNamespace(name=update, optimizer=write_optimizer(recorded, ARRAYS)))
    namespace = {}
    exec(optimizers_text(facts, "train.py"), namespace)
    for update, lr in (("critic", 0.1), ("actor", 0.2)):
        made, rate = namespace[f"{update}_optimizer"]()
        change, _ = made.update(jnp.ones(2), made.init(jnp.ones(2)))
        assert np.allclose(change, -lr)
        assert np.allclose(rate(0), lr)


@pytest.mark.parametrize("name", ["", "optimizer", "learning_rate", "optax", "accumulate"])
def test_name_that_optimizer_py_has_for_another_thing_builds_nothing(name):
    recorded = optimizer(torch.optim.SGD, lr=0.1)
    recorded = dataclasses.replace(recorded, builder=name, accumulation=2)
    source = write_optimizer(recorded, ARRAYS).source
    assert "optimizer = optax.sgd(" in source
    assert source.count(f"def {name}(") == (name == "accumulate")


def test_norm_of_parameters_that_are_not_trained_is_refused():
    recorded = optimizer(torch.optim.SGD, (NAMES[1:], {}), lr=0.1)
    clip = RecordedClip("norm", 1.0, names=NAMES, line=20)
    with pytest.raises(TrainError, match=r"train.py:20: the norm is also of embed.weight"):
        write_optimizer(dataclasses.replace(recorded, clips=(clip,)), ARRAYS)
    frozen = dataclasses.replace(recorded, clips=(clip,), without_gradient=NAMES[:1])
    assert "optax.clip_by_global_norm" in write_optimizer(frozen, ARRAYS).source


def test_clip_of_a_part_of_the_only_array_is_refused():
    arrays = [ParameterArray(("h",), 2, NAMES)]
    clip = RecordedClip("norm", 1.0, names=NAMES[1:])
    recorded = dataclasses.replace(optimizer(torch.optim.SGD, lr=0.1), clips=(clip,))
    with pytest.raises(TrainError, match="clips a part of the trained parameters"):
        write_optimizer(recorded, arrays)


def test_changes_of_the_second_beta_and_of_the_groups_are_seen():
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    made = torch.optim.Adam(parameters[:1])
    watched = OptimizerRecorder("train.py", None)
    watched.before_update(made, {id(parameters[0]): "p"}, None)
    made.param_groups[0]["betas"] = (0.8, 0.99)
    made.add_param_group({"params": parameters[1:]})
    watched.before_update(made, {id(parameters[0]): "p"}, None)
    assert watched.recorded((), "train.py").changed_options == ("betas[1]", "param_groups")


def test_schedules_of_another_optimizer_are_not_those_of_an_update():
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    actor, critic = (torch.optim.Adam([p], lr=0.1) for p in parameters)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (actor, critic)]
    watched = OptimizerRecorder("train.py", None)
    for optimizer, schedule in zip((actor, critic), schedules, strict=True):
        watched.built_optimizer(optimizer)
        watched.built_schedule(schedule)
    for _ in range(3):
        watched.stepped_schedule(schedules[0])  # the actor's comes before the critic's update
        watched.before_update(critic, {id(parameters[1]): "p"}, None)
        watched.stepped_schedule(schedules[1])
    (own,) = watched.recorded((), "train.py").schedules
    assert own.counts == (0, 1, 2)
