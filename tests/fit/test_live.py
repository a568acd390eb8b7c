"""Bytes of the tensors that are alive while operators run one by one."""

from __future__ import annotations

import torch

from migrate.fit.lowered.live import LiveTensors

KIB = 256  # float32 values


def test_the_most_bytes_at_once_and_the_operators_are_counted() -> None:
    held = torch.ones(KIB)
    with LiveTensors([held], "cpu") as live:
        first = held * 2
        second = first + 1
        second.add_(1)  # in place: nothing more is held
        view = second[:3]
        del first
        third = second * 2
        del second, third
        last = view + 1  # the view holds what it is of
    assert live.peak == 3 * KIB * 4
    assert live.operators == 6
    assert last.shape == (3,)


def test_values_for_the_backward_pass_stay_alive() -> None:
    held = torch.ones(KIB, requires_grad=True)
    peaks = []
    for gradients in (False, True):
        with (
            torch.set_grad_enabled(gradients),
            torch.autograd.set_multithreading_enabled(False),
            LiveTensors([held], "cpu") as live,
        ):
            value = held
            for _ in range(4):
                value = value.exp()
        peaks.append(live.peak // (KIB * 4))
        del value
    assert peaks == [3, 5]


def test_tensors_of_other_devices_do_not_count() -> None:
    with LiveTensors([], "tpu") as live:
        torch.ones(KIB) * 2
    assert (live.peak, live.operators) == (0, 0)
