"""Schedules of torch and of scripts: recorded from real objects, written, and equal at every step."""

import dataclasses
import math

import pytest
import torch
from torch.optim import lr_scheduler as schedulers

from migrate.train.errors import TrainError
from migrate.train.optimizer.choice import choose_rates, reference
from migrate.train.optimizer.live import recorded_groups, recorded_schedule
from migrate.train.optimizer.recorded import RecordedOptimizer
from migrate.train.optimizer.replay import momentum_of
from migrate.train.optimizer.stepping import ScheduleSteps, shown_steps

warmup_iters, lr_decay_iters, learning_rate, min_lr = 20, 120, 6e-4, 6e-5


def get_lr(it):
    # 1) linear warmup for warmup_iters steps
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    # 2) if it > lr_decay_iters, return min learning rate
    if it > lr_decay_iters:
        return min_lr
    # 3) in between, use cosine decay down to min learning rate
    decay_ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    assert 0 <= decay_ratio <= 1
    coeff = 0.5 * (1.0 + math.cos(math.pi * decay_ratio))
    return min_lr + coeff * (learning_rate - min_lr)


def record(make, *, rates=(0.1,), updates=12, every=1, total=None, cls=torch.optim.SGD, **options):
    """What a run of torch records: rates and momenta before each update, steps of the scheduler."""
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in rates]
    names = {id(p): f"p{i}" for i, p in enumerate(parameters)}
    groups = [{"params": [p], "lr": rate} for p, rate in zip(parameters, rates, strict=True)]
    optimizer = cls(groups, lr=rates[0], **options)
    made = make(optimizer)
    made = made if isinstance(made, list) else [made]
    recorded = recorded_groups(optimizer, names)
    described = [recorded_schedule(scheduler) for scheduler in made]
    lrs, momenta, counts, calls = [], [], [], 0
    for update in range(updates):
        lrs.append(tuple(group["lr"] for group in optimizer.param_groups))
        momenta.append(tuple(momentum_of(group) for group in optimizer.param_groups))
        counts.append(calls)
        optimizer.step()
        if (update + 1) % every == 0:
            calls += 1
            for scheduler in made:
                scheduler.step()
    described = [
        type(item)(item.name, item.options, item.functions, item.children, tuple(counts), 7)
        for item in described
    ]
    return RecordedOptimizer(
        f"{cls.__module__}.{cls.__qualname__}",
        recorded,
        tuple(lrs),
        tuple(momenta),
        schedules=tuple(described),
        updates=total,
    )


CASES = {
    "step": (lambda o: schedulers.StepLR(o, 5, 0.3), "optax.exponential_decay"),
    "multi step": (
        lambda o: schedulers.MultiStepLR(o, [3, 8, 8], 0.5),
        "optax.piecewise_constant_schedule",
    ),
    "constant": (lambda o: schedulers.ConstantLR(o, 0.25, 6), "optax.piecewise_constant_schedule"),
    "linear": (lambda o: schedulers.LinearLR(o, 0.1, 1.0, 8), "optax.linear_schedule"),
    "exponential": (lambda o: schedulers.ExponentialLR(o, 0.9), "optax.exponential_decay"),
    "polynomial": (lambda o: schedulers.PolynomialLR(o, 9, 2.0), "optax.polynomial_schedule"),
    "cosine": (lambda o: schedulers.CosineAnnealingLR(o, 40, 1e-3), "def cosine"),
    "restarts": (lambda o: schedulers.CosineAnnealingWarmRestarts(o, 4), "step % T_0"),
    "longer restarts": (
        lambda o: schedulers.CosineAnnealingWarmRestarts(o, 4, 2, 1e-4),
        "searchsorted",
    ),
    "one cycle": (lambda o: schedulers.OneCycleLR(o, 0.4, total_steps=40), "def one_cycle"),
    "three phases": (
        lambda o: schedulers.OneCycleLR(
            o, 0.4, epochs=4, steps_per_epoch=10, three_phase=True, anneal_strategy="linear"
        ),
        "def one_cycle",
    ),
    "cyclic": (lambda o: schedulers.CyclicLR(o, 0.01, 0.2, 5, 7), "def cyclic"),
    "cyclic 2": (lambda o: schedulers.CyclicLR(o, 0.01, 0.2, 5, mode="triangular2"), "def cyclic"),
    "cyclic exp": (
        lambda o: schedulers.CyclicLR(o, 0.01, 0.2, 5, mode="exp_range", gamma=0.99),
        "def cyclic",
    ),
    "warm-up, then cosine": (
        lambda o: schedulers.SequentialLR(
            o,
            [schedulers.LinearLR(o, 0.01, 1.0, 5), schedulers.CosineAnnealingLR(o, 50)],
            milestones=[5],
        ),
        "optax.join_schedules",
    ),
    "chained": (
        lambda o: schedulers.ChainedScheduler(
            [schedulers.ConstantLR(o, 0.1, 4), schedulers.ExponentialLR(o, 0.95)]
        ),
        " * ",
    ),
    "two schedulers": (
        lambda o: [schedulers.LinearLR(o, 0.1, 1.0, 8), schedulers.MultiStepLR(o, [6, 9])],
        " * ",
    ),
    "lambda": (lambda o: schedulers.LambdaLR(o, lambda epoch: 0.95**epoch), "def factor(epoch)"),
    "named lambda": (
        lambda o: schedulers.LambdaLR(o, lambda it: get_lr(it) / learning_rate),
        "def get_lr(it)",
    ),
    "multiplicative": (
        lambda o: schedulers.MultiplicativeLR(o, lambda epoch: 0.9),
        "optax.exponential_decay",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rates", [pytest.param((0.1,), marks=pytest.mark.long), (0.1, 0.02)])
def test_written_schedule_has_torchs_rates(name, rates):
    make, words = CASES[name]
    recorded = record(make, rates=rates, momentum=0.9)
    texts = choose_rates(recorded)
    assert words in texts.source
    assert texts.worst < 1e-9
    assert texts.compared >= 41


@pytest.mark.parametrize("name", ["step", "cosine", "lambda", "one cycle"])
def test_schedule_stepped_once_in_an_epoch(name):
    texts = choose_rates(record(CASES[name][0], every=5, momentum=0.9))
    assert "updates_per_epoch = 5" in texts.source
    assert "step // updates_per_epoch" in texts.source


def test_schedule_that_no_record_shows_the_steps_of_is_refused():
    recorded = record(CASES["step"][0], every=100)
    unknown = RecordedOptimizer(
        recorded.name, recorded.groups, recorded.rates, schedules=recorded.schedules
    )
    with pytest.raises(TrainError, match="stepped in an order"):
        choose_rates(unknown)


def test_schedule_of_an_epoch_that_is_longer_than_the_record():
    recorded = record(CASES["step"][0], every=100)
    (schedule,) = recorded.schedules
    known = dataclasses.replace(recorded, schedules=(dataclasses.replace(schedule, per_epoch=100),))
    assert "updates_per_epoch = 100" in choose_rates(known).source


@pytest.mark.parametrize(
    ("counts", "per_epoch", "steps"),
    [
        ((0, 0, 0, 0), 0, None),
        ((0, 0, 0, 0), 7, ScheduleSteps(every=7)),
        ((1, 1, 1, 1), 7, ScheduleSteps(every=7, offset=1)),
        ((0, 0, 1, 1), 7, None),  # stepped within the epoch, too
        ((0, 0, 1, 1, 2), 0, ScheduleSteps(every=2)),
    ],
)
def test_steps_that_the_first_updates_show(counts, per_epoch, steps):
    assert shown_steps(counts, per_epoch) == steps


def test_cosine_within_a_known_training_is_optaxs():
    texts = choose_rates(record(CASES["cosine"][0], total=40))
    assert "optax.cosine_decay_schedule" in texts.source


def test_momentum_of_one_cycle_for_adam():
    recorded = record(CASES["one cycle"][0], cls=torch.optim.AdamW)
    assert choose_rates(recorded).momenta == ("momentum",)


def test_function_that_scales_a_cycle_is_refused():
    recorded = record(
        lambda o: schedulers.CyclicLR(
            o, 0.01, 0.2, 50, scale_fn=lambda x: 0.5 if x > 90 else 1.0, cycle_momentum=False
        )
    )
    with pytest.raises(TrainError, match=r"train.py:7: CyclicLR scales by a function"):
        choose_rates(recorded)


class StepLR(schedulers.StepLR):
    def get_lr(self):
        return [rate * (0.5 if self.last_epoch > 1000 else 1.0) for rate in self.base_lrs]


def test_scheduler_of_the_scripts_own_is_not_the_one_of_its_name():
    with pytest.raises(TrainError, match=r"train.py:7: the scheduler .*StepLR is unknown"):
        choose_rates(record(lambda o: StepLR(o, 10**6)))


def test_momentum_that_is_not_the_schedulers():
    recorded = record(CASES["one cycle"][0], momentum=0.9)
    momenta = (*recorded.momenta[:-1], (0.5,))
    with pytest.raises(TrainError, match=r"had the momentum 0.5, .* something else sets it too"):
        choose_rates(dataclasses.replace(recorded, momenta=momenta))


def test_cosine_of_a_training_longer_than_the_comparison_rises_again():
    texts = choose_rates(record(lambda o: schedulers.CosineAnnealingLR(o, 50_000)))
    assert "def cosine(" in texts.source


def test_one_cycle_within_a_sequence_ends():
    recorded = record(
        lambda o: schedulers.SequentialLR(
            o,
            [
                schedulers.ConstantLR(o, 1.0, 1),
                schedulers.OneCycleLR(o, 0.4, total_steps=40, cycle_momentum=False),
            ],
            milestones=[5],
        )
    )
    assert len(reference(recorded)) == 46


def test_schedulers_that_cannot_be_made_again_are_refused():
    recorded = record(CASES["step"][0])
    (item,) = recorded.schedules
    item = dataclasses.replace(item, options={**item.options, "step_size": "5"})
    with pytest.raises(TrainError, match=r"cannot be made again \(TypeError"):
        choose_rates(dataclasses.replace(recorded, schedules=(item,)))
