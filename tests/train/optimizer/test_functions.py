"""Functions of scripts and of transformers as learning rates: in JAX, or evaluated before training."""

import dataclasses
import functools
import math
import re
from types import SimpleNamespace

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, MultiplicativeLR, ReduceLROnPlateau

from migrate.train.errors import TrainError
from migrate.train.optimizer.choice import choose_rates, rate_difference
from migrate.train.optimizer.functions import ModuleNames, Unportable, port
from migrate.train.optimizer.live import recorded_function
from migrate.train.optimizer.points import far_points
from migrate.train.optimizer.recorded import RecordedCall, RecordedGroup, RecordedOptimizer
from migrate.train.optimizer.schedules import table_text
from tests.train.optimizer.test_schedules import get_lr, record


class Args:
    warmup = 4
    gamma = 0.5


args = Args()
milestones = [3, 7]


def by_branches(step):
    if step < args.warmup:
        scale = (step + 1) / args.warmup
    elif step < 10 and step != 6:
        scale = 1.0
    else:
        # decays from here on
        progress = (step - 10) / 30
        scale = max(0.1, 1 - progress)
    return scale


def by_loop(step):
    rate = 1.0
    for milestone in milestones:
        if step >= milestone:
            rate *= args.gamma
    return rate


def by_containers(step):
    return 0.5 ** sum(step >= milestone for milestone in milestones)


def handwritten(function, rates, arguments, updates=None):
    groups = tuple(
        RecordedGroup((f"p{i}",), {"lr": rate, "momentum": 0.0}) for i, rate in enumerate(rates[0])
    )
    return RecordedOptimizer(
        "torch.optim.sgd.SGD",
        groups,
        tuple(tuple(r) for r in rates),
        function=RecordedCall(recorded_function(function), tuple(arguments)),
        updates=updates,
    )


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        (lambda i: i, "get_lr"),
        (lambda i: i + 1, "get_lr(step + 1)"),
        (lambda i: i * 4 + 3, "get_lr(step * 4 + 3)"),
        (lambda i: i / 8, "get_lr(step / 8)"),
    ],
)
def test_function_of_the_script(argument, text):
    arguments = [argument(i) for i in range(6)]
    recorded = handwritten(get_lr, [(get_lr(a), get_lr(a) * 0.5) for a in arguments], arguments)
    texts = choose_rates(recorded)
    assert text in (texts.rates[0], *texts.definitions[0].splitlines()[-1].split("return "))
    assert "# 1) linear warmup for warmup_iters steps" in texts.source
    assert "\n            it < warmup_iters,\n" in texts.source
    assert "0.5 * get_lr" in texts.source
    assert texts.worst < 1e-12


@pytest.mark.parametrize("function", [by_branches])
def test_branches_that_assign(function):
    recorded = handwritten(function, [(function(i),) for i in range(6)], range(6))
    texts = choose_rates(recorded)
    assert "jnp.where" in texts.source
    assert "warmup = 4" in texts.source


@pytest.mark.parametrize("function", [by_loop, by_containers])
def test_loops_are_refused_or_evaluated_before_training(function):
    with pytest.raises(Unportable):
        port(recorded_function(function), ModuleNames())
    recorded = handwritten(function, [(function(i),) for i in range(6)], range(6))
    with pytest.raises(TrainError, match="cannot be written as a function of the step") as refusal:
        choose_rates(recorded)
    assert "record the whole training with a large --updates" in refusal.value.remedy
    if function is by_containers:
        texts = choose_rates(dataclasses.replace(recorded, updates=20))
        assert "by_containers_values" in texts.source
        assert "fill_value=jnp.nan" in texts.source


def test_groups_with_the_same_recorded_rates_share_their_table():
    """Nothing is known of what sets them, so the whole training has to be recorded."""
    rates = [0.1, 0.3, 0.2, 0.7, 0.05, 0.4]
    recorded = handwritten(get_lr, [(r, r, r / 3) for r in rates], range(6))
    recorded = dataclasses.replace(recorded, function=None, updates=6)
    texts = choose_rates(recorded)
    assert texts.rates[0] == texts.rates[1] != texts.rates[2]
    assert texts.source.count("jnp.asarray(") == 2
    assert "6 recorded ones" in texts.note


def factor(it, total, floor=0.0, *, power=1):
    if it < 3:
        return (it + 1) / 4
    return floor + (1 - floor) * (1 - it / total) ** power


def test_function_that_a_lambda_calls_with_constants():
    total = 40
    recorded = record(lambda o: LambdaLR(o, lambda it: factor(it, total, power=2, floor=-0.5)))
    texts = choose_rates(recorded)
    assert "def factor(it, total, floor, power):" in texts.source
    assert "factor(step, total, power=2, floor=-0.5)" in texts.source
    assert "total = 40" in texts.source


total_iters, half_iters = 40, 20


def by_name(o):
    return LambdaLR(o, lambda it: factor(it, total_iters))


def by_keyword(o):
    return LambdaLR(o, lambda it: factor(it, power=half_iters, total=total_iters))


def longer(it, total):
    return (factor(it, total) + factor(it, total=total)) / 2


def by_two_functions(o):
    return LambdaLR(o, lambda it: longer(it, total_iters))


def ignoring(it, total):
    return get_lr(it)


def by_ignored(o):
    return LambdaLR(o, lambda it: ignoring(it, half_iters))


named = lambda it: factor(it, total_iters)  # noqa: E731


def by_named_lambda(o):
    return LambdaLR(o, lambda it: named(it) / 2)


def hidden_by_schedules(o):
    step = 40
    return LambdaLR(o, lambda it: factor(it, step))


def number_second(total, it):
    return 1 - it / total


def by_second(o):
    return LambdaLR(o, lambda it: number_second(total_iters, it))


def scaled(it, total):
    total = total * 2
    return factor(it, total_iters) * it / total


def by_assigned(o):
    return LambdaLR(o, lambda it: scaled(it, half_iters))


def lengthened(it, warmup):
    return warmup + it / args.warmup


def by_name_of_attribute(o):
    return LambdaLR(o, lambda it: lengthened(it, half_iters))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (by_name, ("def factor(it, total):", "learning_rate * factor(step, total_iters)")),
        (
            by_keyword,
            ("def factor(it, total, power):", "power=half_iters, total=total_iters)"),
        ),
        (by_two_functions, ("def longer(it, total):", "factor(it, total)")),
        (by_ignored, ("def ignoring(it, total):", "ignoring(step, half_iters)")),
        (by_named_lambda, ("return factor(it, total_iters)", "factor_of_step(it) / 2")),
        (hidden_by_schedules, ("step = 40", "return factor(it, step)")),
        (by_second, ("def number_second(total, it):", "number_second(total_iters, it)")),
        (by_assigned, ("total = total * 2", "factor(it, total_iters)")),
        (by_name_of_attribute, ("it / args_warmup", "args_warmup = 4")),
    ],
)
def test_number_that_a_call_passes_by_its_name_stays_an_argument(make, words):
    texts = choose_rates(record(make))
    assert texts.worst < 1e-9
    assert "total = 40" not in texts.source
    assert all(text in texts.source for text in words)


def test_groups_pass_their_own_numbers_to_one_function():
    def make(o):
        return LambdaLR(
            o, [lambda it: factor(it, total_iters), lambda it: factor(it, half_iters)]
        )  # fmt: skip

    texts = choose_rates(record(make, rates=(0.1, 0.1)))
    assert texts.source.count("def factor") == 1
    assert {"factor(step, total_iters)", "factor(step, half_iters)"} <= {
        part for text in texts.definitions for part in re.findall(r"factor\(.*\)", text)
    }


settings = SimpleNamespace(long=40, short=20)


def shaped(it, shape, total=30):
    return 1 - it / total if shape == "linear" else (1 - it / total) ** 2


def by_other_literals(o):
    return LambdaLR(o, [lambda it: factor(it, 40), lambda it: factor(it, 20.5)])  # fmt: skip


def by_two_literals_in_one(o):
    return LambdaLR(o, [lambda it: factor(it, 40) * factor(it, 20, floor=-0.5)] * 2)  # fmt: skip


def by_attributes(o):
    return LambdaLR(
        o, [lambda it: factor(it, settings.long), lambda it: factor(it, settings.short)]
    )  # fmt: skip


def by_words(o):
    return LambdaLR(o, [lambda it: shaped(it, "linear"), lambda it: shaped(it, "square")])  # fmt: skip


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (by_other_literals, ("factor(step, 40)", "factor(step, 20.5)")),
        (by_two_literals_in_one, ("factor(it, 40)", "factor_2(it, 20, floor=-0.5)")),
        (by_attributes, ("long = 40", "factor(step, long)", "factor(step, short)")),
        (by_words, ("shape = 'linear'", "shape_2 = 'square'")),
    ],
)
def test_calls_of_one_function_pass_different_constants(make, words):
    texts = choose_rates(record(make, rates=(0.1, 0.1)))
    assert texts.worst < 1e-9
    assert all(text in texts.source for text in words)


def test_a_lambda_on_several_lines():
    warmup, updates = 2, 20
    recorded = record(
        lambda o: LambdaLR(
            o,
            lambda step: min(1.0, (step + 1) / warmup)
            * 0.5 * (1 + math.cos(math.pi * min(1.0, step / updates))),
        )
    )  # fmt: skip
    assert choose_rates(recorded).worst < 1e-9


def test_function_that_a_lambda_calls_with_two_numbers_is_refused():
    recorded = record(lambda o: LambdaLR(o, lambda it: factor(it, it + 50)))
    with pytest.raises(TrainError, match="factor with more than one number"):
        choose_rates(recorded)


def test_default_that_is_a_name():
    total = 40
    recorded = record(lambda o: LambdaLR(o, lambda it, total=total: 1 - it / total))
    assert "total = 40" in choose_rates(recorded).source


def test_default_that_is_an_expression_is_refused():
    total = 40
    recorded = record(lambda o: LambdaLR(o, lambda it, total=total + 1: 1 - it / total))
    with pytest.raises(TrainError, match=r"function whose source is unknown .*total"):
        choose_rates(recorded)


def test_rate_that_nothing_explains():
    rates = ((0.1,), (0.3,), (0.2,))
    recorded = RecordedOptimizer(
        "torch.optim.sgd.SGD", (RecordedGroup(("p0",), {"lr": 0.1}),), rates
    )
    with pytest.raises(TrainError, match="cannot be written"):
        choose_rates(recorded)
    texts = choose_rates(dataclasses.replace(recorded, updates=3))
    assert "what computes them is unknown" in texts.source
    assert texts.note


def test_rate_that_is_not_the_schedulers():
    recorded = record(lambda o: LambdaLR(o, lambda step: 0.9**step))
    rates = (*recorded.rates[:-1], (0.5,))
    with pytest.raises(TrainError, match="something else sets it too"):
        choose_rates(dataclasses.replace(recorded, rates=rates))


def test_plateau_is_refused():
    parameter = torch.nn.Parameter(torch.zeros(1))
    from migrate.train.optimizer.live import recorded_schedule

    optimizer = torch.optim.SGD([parameter], lr=0.1)
    item = dataclasses.replace(recorded_schedule(ReduceLROnPlateau(optimizer)), line=9)
    recorded = RecordedOptimizer(
        "torch.optim.sgd.SGD",
        (RecordedGroup(("p",), {"lr": 0.1}),),
        ((0.1,), (0.1,)),
        schedules=(item,),
    )
    with pytest.raises(TrainError, match=r"train.py:9: ReduceLROnPlateau sets the learning rate"):
        choose_rates(recorded)


def test_multiplicative_function_is_a_product_evaluated_before_training():
    texts = choose_rates(
        record(lambda o: MultiplicativeLR(o, lambda step: 1 - 1 / (step + 2)), total=30)
    )
    assert "np.cumprod" in texts.source


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("constant_schedule_with_warmup", {"num_warmup_steps": 5}, "optax.linear_schedule"),
        (
            "linear_schedule_with_warmup",
            {"num_warmup_steps": 5, "num_training_steps": 30},
            "optax.join_schedules",
        ),
        (
            "cosine_schedule_with_warmup",
            {"num_warmup_steps": 5, "num_training_steps": 30},
            "optax.warmup_cosine_decay_schedule",
        ),
        (
            "cosine_with_hard_restarts_schedule_with_warmup",
            {"num_warmup_steps": 5, "num_training_steps": 30, "num_cycles": 2},
            "def cosine_with_hard_restarts_schedule_with_warmup(",
        ),
        (
            "polynomial_decay_schedule_with_warmup",
            {"num_warmup_steps": 5, "num_training_steps": 30},
            "def polynomial_decay_schedule_with_warmup(",
        ),
        ("inverse_sqrt_schedule", {"num_warmup_steps": 5}, "def inverse_sqrt_schedule("),
    ],
)
def test_schedules_of_transformers(name, options, words, monkeypatch):
    monkeypatch.setattr("transformers.utils.import_utils.USE_TORCH_XLA", "0")
    from transformers import optimization

    make = functools.partial(getattr(optimization, f"get_{name}"), **options)
    texts = choose_rates(record(make, total=30))
    assert words in texts.source
    assert math.isfinite(texts.worst)


late_steps = 50_000


def rounded(step):
    return 0.1 if step <= late_steps else 0.1 / (1 + (step - late_steps) ** 8)


def test_functions_are_compared_at_the_numbers_that_they_have():
    points = far_points([recorded_function(rounded)])
    assert {late_steps - 1, late_steps, late_steps + 1, 2**22} <= set(points)
    recorded = handwritten(rounded, [(0.1,)] * 6, range(6))
    texts = choose_rates(recorded)
    wrong = texts.source.replace("<= late_steps", "< late_steps + 1000")
    assert wrong != texts.source
    names = ModuleNames(functions={"rounded": wrong})
    far = {late_steps + 1: [(rounded(late_steps + 1), None)]}
    expected = [[(0.1, None)]] * 3000
    changed = dataclasses.replace(texts, names=names)
    assert rate_difference(changed, expected) < 1e-9
    assert rate_difference(changed, expected, far) > 0.1


def unknown_after_ten(step):
    return 0.1 if step < 10 else absent * step  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize("schedule", [True, False])
def test_function_that_fails_is_refused(schedule):
    if schedule:
        recorded = record(lambda o: LambdaLR(o, unknown_after_ten), updates=9)
        recorded = dataclasses.replace(recorded, line=4)
    else:
        recorded = dataclasses.replace(
            handwritten(unknown_after_ten, [(0.1,)] * 6, range(6)), line=4
        )
    with pytest.raises(TrainError, match=r"train.py:4: .*\(10\) raises NameError"):
        choose_rates(recorded)


def nothing_after_ten(step):
    return 0.1 if step < 10 else None


def test_function_that_returns_none_is_refused():
    recorded = dataclasses.replace(handwritten(nothing_after_ten, [(0.1,)] * 6, range(6)), line=4)
    with pytest.raises(TrainError, match=r"train.py:4: .*\(10\) returns None"):
        choose_rates(recorded)


FACTORS = [0.9] * 30


def factor_of_list(step):
    return FACTORS[step]


def test_factors_of_a_list_are_no_constant():
    recorded = record(lambda o: MultiplicativeLR(o, factor_of_list), updates=9, total=20)
    assert "factor_of_list_values" in choose_rates(recorded).source


def test_constant_rate_names_what_was_watched():
    recorded = handwritten(rounded, [(0.1,)] * 6, range(6))
    recorded = dataclasses.replace(recorded, function=None)
    assert choose_rates(recorded).note == "the learning rate is constant in the 6 watched updates"
    sets = dataclasses.replace(recorded, sets_rate=31)
    assert "train.py:31 sets a learning rate" in choose_rates(sets).note
    assert not choose_rates(dataclasses.replace(sets, updates=6)).note


def test_third_definition_of_a_name():
    names = ModuleNames()
    for number in range(3):
        name = names.function("f", f"def f(step):\n    return {number}")
        table = table_text("values", f"jnp.asarray([{number}])", names)
        suffix = f"_{number + 1}" if number else ""
        assert names.functions[name].startswith(f"def f{suffix}(")
        assert names.functions[f"values{suffix}"].startswith(f"values{suffix} = ")
        assert table("step").startswith(f"values{suffix}.at")
