"""Printed lines: which numbers are compared, and which two runs of one script never print alike."""

from __future__ import annotations

import io
import sys

import pytest

from migrate.prove.recording import meters


def unlike(original: str, ours: str) -> bool:
    return meters.first_unlike(original.splitlines(), ours.splitlines()) is not None


@pytest.mark.parametrize(
    ("original", "ours"),
    [
        ("epoch 3: loss 0.5000", "epoch 3: loss 0.5100"),
        ("loss=0.5", "loss=0.7"),
        ("Loss 6.9e-01 (7.0e-01)", "Loss 6.9e-01 (7.5e-01)"),
        ("Acc@1 12.50", "Acc@1 14.50"),
        ("{'loss': 0.5123, 'lr': 0.1}", "{'loss': 0.6123, 'lr': 0.1}"),
        ("loss nan", "loss 0.5"),
        ("epoch 0: loss 0.50\nepoch 1: loss 0.40", "epoch 1: loss 0.40\nepoch 0: loss 0.60"),
        ("Epoch [1/3] time 1.2s loss: 0.51", "Epoch [1/3] time 9.7s loss: 0.61"),
    ],
)
def test_numbers_that_differ_are_found(original: str, ours: str) -> None:
    assert unlike(original, ours)
    assert not unlike(original, original)


@pytest.mark.parametrize(
    ("original", "ours"),
    [
        ("loss 0.5000", "loss 0.5001"),  # a half that rounds to either side
        ("loss 0.7", "loss 0.6"),
        ("loss 1.000e-03", "loss 1.0005e-03"),
        ("Acc@1 87.50", "Acc@1 87.60"),
        ("epoch 0 took 12.3 s, loss 0.50", "epoch 0 took 98.7 s, loss 0.50"),
        ("Time  0.123 ( 0.456) Loss 1.5", "Time  9.123 ( 7.456) Loss 1.5"),
        ("Data 0.001 (0.002) loss 0.5", "Data 0.301 (0.702) loss 0.5"),
        ("10/40 [00:01<00:05, 3.21it/s] loss 0.5", "10/40 [00:09<00:55, 0.71it/s] loss 0.5"),
        ("eta: 0:01:02 loss: 0.5 max mem: 123.5", "eta: 0:09:02 loss: 0.5 max mem: 0.0"),
        ("batch_time 0.51 loss 0.5", "batch_time 9.51 loss 0.5"),
        ("throughput: 512.25 img/s", "throughput: 2.5 img/s"),
        (
            "iter 10: loss 0.5000, time 12.33ms, mfu 1.20%",
            "iter 10: loss 0.5, time 99.1ms, mfu 0.1%",
        ),
        ("[2026-11-21 10:00:01,123] loss 0.5", "[2026-11-21 11:07:09,456] loss 0.5"),
        ("GPU 0: loss 0.5", "GPU 1: loss 0.5"),
        ("tensor(0.5, device='cuda:0', grad_fn=<A>)", "tensor(0.5, device='xla:0')"),
        ("torch 2.9.1, loss 0.5", "torch 2.9.1, loss 0.5\nloss 0.9"),
        ("loss 0.5\nloss 0.4", "loss 0.4"),  # told apart by their order only
        ("pid 1234", "pid 99"),
        ("epoch 0: loss 0.5", "something else: loss 0.9"),
        ("epoch 0: loss 0.5\nepoch 1: loss 0.4", "epoch 1: loss 0.4\nepoch 0: loss 0.5"),
    ],
)
def test_what_says_nothing_of_the_training_is_left_out(original: str, ours: str) -> None:
    assert not unlike(original, ours)


def test_the_line_is_told_as_it_was_printed() -> None:
    found = meters.first_unlike([" epoch 0: loss 0.50 in 3s"], ["epoch 0: loss 0.75 in 9s"])
    assert found is not None
    assert [line.text for line in found] == [
        "epoch 0: loss 0.50 in 3s",
        "epoch 0: loss 0.75 in 9s",
    ]


def test_lines_that_two_runs_of_the_original_print_differently_are_noise() -> None:
    first, second = ["x 0.5", "loss 0.25"], ["x 0.9", "loss 0.25"]
    noisy = meters.noisy_keys(first, second)
    assert meters.first_unlike(first, ["x 0.1", "loss 0.25"], noisy) is None
    assert meters.first_unlike(first, ["x 0.5", "loss 0.35"], noisy) is not None


def test_whole_lines_with_a_digit_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [io.TextIOWrapper(io.BytesIO()) for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    heard: list[str] = []
    meters.to_output(heard.append)
    for text in ("loss", " 0.5", "\n", "no digit\n", "1.0"):
        sys.stdout.write(text)
    sys.stderr.write(" 50%|##\r 90%|##\r100%\n")
    sys.stdout.write(" and 2.0\n")
    for stream in streams:
        stream.flush()
    assert heard == ["loss 0.5", "1.0 and 2.0"]
    assert streams[0].buffer.getvalue() == b"loss 0.5\nno digit\n1.0 and 2.0\n"  # type: ignore[attr-defined]
