"""The toy example against its rewrite, and what else a proof of two scripts can find."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from migrate.prove.compare.gates import LOSS_GATE, PARAMETER_GATE
from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.errors import NotAnsweredError, OriginalFailedError, RewriteFailedError
from migrate.prove.proof import Proof, prove
from migrate.prove.settings import Amp, Settings
from tests.waiting import LIMIT

TOY = Path(__file__).parents[2] / "examples" / "ddp_toy"
BEFORE = (TOY / "before.py").read_text()
AFTER = (TOY / "after.py").read_text()

TIMED = Settings(timeout=LIMIT)

# One epoch of three steps on two ranks: enough for every fault.
SHORT = (("range(3)", "range(1)"), ("size=512", "size=96"))


def edited(source: str, *edits: tuple[str, str]) -> str:
    for old, new in edits:
        assert old in source, f"the example has no {old!r} any more"
        source = source.replace(old, new)
    return source


def prove_texts(
    folder: Path, before: str, after: str, replicas: int = 2, settings: Settings = TIMED
) -> Proof:
    original, rewritten = folder / "train.py", folder / "train_xla.py"
    original.write_text(before)
    rewritten.write_text(after)
    return prove(original, rewritten, replicas=replicas, settings=settings)


@pytest.mark.parametrize("replicas", [2, pytest.param(4, marks=pytest.mark.long)])
def test_the_toy_example_is_equal(replicas: int) -> None:
    said: list[str] = []
    proof = prove(
        TOY / "before.py",
        TOY / "after.py",
        replicas=replicas,
        settings=TIMED,
        progress=lambda what, *_: said.append(what),
    )
    assert proof.verdict is ProofVerdict.MATCH, proof.message
    assert proof.equal
    assert proof.difference is None
    (precision,) = proof.notes
    assert "set_mat_mul_precision" in precision
    # 512 examples in batches of 16, three times.
    steps = 3 * 512 // 16 // replicas
    assert [step.step for step in proof.steps if step.rank == replicas - 1] == [
        *range(1, steps + 1)
    ]
    assert {step.rank for step in proof.steps} == set(range(replicas))
    assert all(step.original.loss != 0.0 for step in proof.steps)
    assert proof.max_loss_difference is not None
    assert proof.max_loss_difference < LOSS_GATE
    assert {weight.name for weight in proof.weights} == {
        "net1.weight",
        "net1.bias",
        "net2.weight",
        "net2.bias",
    }
    assert proof.max_weight_difference is not None
    assert 0.0 < proof.max_weight_difference < PARAMETER_GATE * steps**0.5
    assert said[0].startswith("running the original")


@pytest.mark.long
def test_training_that_says_nothing_is_vacuous(tmp_path: Path) -> None:
    nothing = ("loss = loss_fn(outputs, labels)", "loss = (outputs * 0).sum()")
    proof = prove_texts(tmp_path, edited(BEFORE, *SHORT, nothing), edited(AFTER, *SHORT, nothing))
    assert proof.verdict is ProofVerdict.VACUOUS, proof.message
    assert not proof.equal


@pytest.mark.long
def test_an_original_that_raises_was_broken_before(tmp_path: Path) -> None:
    broken = edited(
        BEFORE, ("    loss_fn =", "    raise ValueError('no data here')\n    loss_fn =")
    )
    with pytest.raises(
        OriginalFailedError,
        match="fails on the CPU as it is, without the rewrite: ValueError: no data",
    ) as e:
        prove_texts(tmp_path, broken, AFTER)
    assert "train.py" in e.value.output
    assert "raise ValueError('no data here')" in e.value.output


@pytest.mark.long
def test_ranks_that_leave_by_exit_have_made_their_steps(tmp_path: Path) -> None:
    """`sys.exit(main())` ended the original's ranks a step later than the rewrite's: "drop_last", it said."""
    ended = (
        "    dist.destroy_process_group()\n",
        "    dist.destroy_process_group()\n    sys.exit(0)\n",
    )
    imported = ("import torch\n", "import sys\n\nimport torch\n")
    before, after = (edited(text, *SHORT, ended, imported) for text in (BEFORE, AFTER))
    proof = prove_texts(tmp_path, before, after)
    assert proof.verdict is ProofVerdict.MATCH, proof.message
    assert {step.step for step in proof.steps if step.rank == 1} == {1, 2, 3}


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    [
        "torch.cuda.utilization()",
        "torch._C._cuda_init()",
        "torch.cuda.memory_snapshot()",
    ],
)
def test_what_shims_do_not_answer_was_not_broken_before(line: str, tmp_path: Path) -> None:
    asking = edited(BEFORE, ("    loss_fn =", f"    {line}\n    loss_fn ="))
    with pytest.raises(NotAnsweredError, match="cannot run on the CPU in CUDA's place: ") as e:
        prove_texts(tmp_path, asking, AFTER)
    assert "broken" not in str(e.value)


@pytest.mark.long
def test_a_rewrite_that_raises_is_another_error(tmp_path: Path) -> None:
    broken = edited(AFTER, ("    loss_fn =", "    raise ValueError('not on XLA')\n    loss_fn ="))
    with pytest.raises(RewriteFailedError, match=r"failed on XLA .*: .*not on XLA") as e:
        prove_texts(tmp_path, edited(BEFORE, *SHORT), broken)
    assert "raise ValueError('not on XLA')" in e.value.output
    assert not [name for name in os.listdir(tmp_path) if not name.startswith("train")]


ACCUMULATION = """
import os, sys
import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

def train(device):
    torch.manual_seed(1)
    normalize = nn.BatchNorm1d(8, momentum=MOMENTUM)
    body = nn.Sequential(nn.Linear(4, 8), normalize, nn.Dropout(DROPOUT), nn.Linear(8, 8))
    head = nn.Linear(8, 8, bias=False)
    body.to(device), head.to(device)
    first = torch.optim.AdamW(body.parameters(), lr=0.01)
    second = torch.optim.SGD(head.parameters(), lr=0.1)
    for step in range(3):
        for micro in range(2):
            loss = head(body(torch.randn(6, 4).to(device))).square().mean() / 2
            loss.backward()
        nn.utils.clip_grad_norm_(body.parameters(), 0.1)
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
        SYNC
"""


def prove_accumulation(folder: Path, *edits: tuple[str, str], settings: Settings = TIMED) -> Proof:
    program = edited(ACCUMULATION, *edits)
    before = edited(program, ("SYNC", "pass")) + "train('cuda')\n"
    after = "import torch_xla\n" + edited(program, ("SYNC", "torch_xla.sync()")) + "train('xla')\n"
    return prove_texts(folder, before, after, settings=settings)


@pytest.mark.long
def test_accumulation_clipping_buffers_and_two_optimizers_without_a_launch(tmp_path: Path) -> None:
    proof = prove_accumulation(tmp_path, ("DROPOUT", "0.0"), ("MOMENTUM", "0.0"))
    assert proof.verdict is ProofVerdict.MATCH, proof.message
    assert [(step.optimizer, step.step) for step in proof.steps] == [
        (optimizer, step) for step in (1, 2, 3) for optimizer in (0, 1)
    ]
    first, second, *_ = proof.steps
    assert len(first.original.losses) == 2
    # The first optimizer's gradients are clipped: the norm before is what is compared.
    assert len(first.rewritten.clipped_from) == 1
    assert first.rewritten.clipped_from[0] > 0.1
    assert first.rewritten.gradient_norm == pytest.approx(0.1, rel=1e-4)
    assert (first.original.parameters, second.original.parameters) == (6, 1)
    assert {"0.weight", "1.running_mean", "1.num_batches_tracked", "model1.weight"} <= {
        weight.name for weight in proof.weights
    }
    assert any("trained on 1 ranks of its own choice, not on 2" in note for note in proof.notes)
    # The gradient of a bias before a batch normalization is zero but for rounding.
    assert [weight.name for weight in proof.weights if weight.noise] == ["0.bias"]
    assert any(
        note.startswith("0.bias: gradients are zero but for rounding") for note in proof.notes
    )


@pytest.mark.long
def test_a_difference_under_dropout_is_explained(tmp_path: Path) -> None:
    edits = ("DROPOUT", "0.5"), ("MOMENTUM", "0.0")
    settings = Settings(deterministic=False, timeout=LIMIT)
    proof = prove_accumulation(tmp_path, *edits, settings=settings)
    assert proof.verdict is ProofVerdict.DIFFERS
    assert any("dropout with p=0.5 was active" in note for note in proof.notes)


BIASED = (
    "running variances of batch normalization are compared as torch_xla keeps them: it averages the biased "
    "variance (divided by n), torch the unbiased one (by n - 1)"
)


# Under Adam the bias before the normalization walks at random, and its running mean with it.
PLAIN = ("AdamW(body.parameters(), lr=0.01)", "SGD(body.parameters(), lr=0.01)")


@pytest.mark.long
def test_running_variances_are_compared_as_torch_xla_keeps_them(tmp_path: Path) -> None:
    proof = prove_accumulation(tmp_path, ("DROPOUT", "0.0"), ("MOMENTUM", "0.1"), PLAIN)
    assert proof.verdict is ProofVerdict.MATCH, proof.message
    (variance,) = [weight for weight in proof.weights if weight.name == "1.running_var"]
    assert variance.difference < PARAMETER_GATE
    assert BIASED in proof.notes


@pytest.mark.long
def test_another_momentum_of_a_normalization_is_found(tmp_path: Path) -> None:
    program = edited(ACCUMULATION, ("DROPOUT", "0.0"), PLAIN)
    before = edited(program, ("SYNC", "pass"), ("MOMENTUM", "0.1")) + "train('cuda')\n"
    after = edited(program, ("SYNC", "torch_xla.sync()"), ("MOMENTUM", "0.11")) + "train('xla')\n"
    proof = prove_texts(tmp_path, before, f"import torch_xla\n{after}")
    assert proof.verdict is ProofVerdict.DIFFERS
    assert proof.difference is not None
    assert proof.difference.kind == "buffers"
    assert "1.running_" in proof.message


# Rounds its updates to bfloat16 by itself; XLA leaves roundings within a fusion out.
ORTHOGONAL = """
import torch

class Orthogonal(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            update = parameter.grad.bfloat16()
            update = update / (update.norm() + 1e-7)
            for turn in range(3):
                update = RULE * update - 0.5 * update @ update.T @ update
            parameter.add_(update.type_as(parameter), alpha=-0.02)

def train(device):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4, bias=False).to(device)
    optimizer = Orthogonal(model.parameters(), {})
    for step in range(2):
        loss = (model(torch.randn(8, 4).to(device)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        SYNC
"""


@pytest.mark.long
@pytest.mark.parametrize(("rule", "verdict"), [("1.5", "match"), ("1.499", "differs")])
def test_an_update_in_bfloat16_is_compared_without_excess_precision(
    rule: str, verdict: str, tmp_path: Path
) -> None:
    before = edited(ORTHOGONAL, ("RULE", "1.5"), ("SYNC", "pass"))
    after = edited(ORTHOGONAL, ("RULE", rule), ("SYNC", "torch_xla.sync()"))
    after = f"import torch_xla\n{after}train('xla')\n"
    proof = prove_texts(tmp_path, f"{before}train('cuda')\n", after, replicas=1)
    assert proof.verdict == verdict, proof.message
    assert "excess precision" in proof.message
    assert ("the optimizer updates it differently" in proof.message) is (verdict == "differs")


PRECISION = """
import torch
import torch.nn as nn

def train(device):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    STATE
    for step in range(2):
        with torch.autocast(device, dtype=TYPE):
            loss = model(torch.randn(8, 16).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        SYNC
"""
AUTOCAST = "torch.autocast(device, dtype=TYPE)"
STATE = "torch.set_autocast_dtype('xla', torch.bfloat16); torch.set_autocast_enabled('xla', True)"


@pytest.mark.parametrize(
    ("by_state", "amp", "verdict"),
    [
        # Whether bfloat16 is within the noise of float16 is for the CPU's kernels to say.
        pytest.param(False, "keep", None, marks=pytest.mark.long),
        (False, "off", ProofVerdict.MATCH),
        # As by default: see the next test.
        pytest.param(False, "bf16", ProofVerdict.MATCH, marks=pytest.mark.long),
        pytest.param(True, "off", ProofVerdict.MATCH, marks=pytest.mark.long),
    ],
)
@pytest.mark.long_cases("False-off-equal")
def test_autocast_can_be_kept_or_off_or_in_bfloat16(
    by_state: bool, amp: Amp, verdict: ProofVerdict | None, tmp_path: Path
) -> None:
    before, after = tmp_path / "train.py", tmp_path / "train_xla.py"
    program = edited(PRECISION, ("STATE", "pass"), ("TYPE", "torch.float16"), ("SYNC", "pass"))
    before.write_text(f"{program}train('cuda')\n")
    edits = [("SYNC", "torch_xla.sync()"), ("STATE", STATE if by_state else "pass")]
    if by_state:
        edits.append((AUTOCAST, "torch.enable_grad()"))
    else:
        edits.append(("TYPE", "torch.bfloat16"))
    after.write_text(f"import torch_xla\n{edited(PRECISION, *edits)}train('xla')\n")
    proof = prove(before, after, replicas=1, settings=Settings(amp=amp, timeout=LIMIT))
    assert verdict is None or proof.verdict is verdict, proof.message
    if amp == "keep":  # each rounds as its type does
        assert proof.max_loss_difference is not None
        assert proof.max_loss_difference > 1e-5
    assert ("autocast was switched off on both sides" in proof.notes) is (amp == "off")
    assert proof.bfloat16 is (amp == "bf16")
    assert any("without --amp keep" in note for note in proof.notes) is (amp == "keep")


@pytest.mark.long
def test_by_default_a_script_in_float16_is_compared_in_bfloat16(tmp_path: Path) -> None:
    before, after = tmp_path / "train.py", tmp_path / "train_xla.py"
    before.write_text(
        edited(PRECISION, ("STATE", "pass"), ("TYPE", "torch.float16"), ("SYNC", "pass"))
        + "train('cuda')\n"
    )
    own = edited(PRECISION, ("STATE", "pass"), ("TYPE", "torch.bfloat16"))
    after.write_text(f"import torch_xla\n{edited(own, ('SYNC', 'torch_xla.sync()'))}train('xla')\n")
    proof = prove(before, after, replicas=1, settings=Settings(timeout=LIMIT))
    assert proof.verdict is ProofVerdict.MATCH, proof.message
    assert any("both sides used autocast in bfloat16" in note for note in proof.notes)
    assert any("--amp off compares in float32" in note for note in proof.notes)
