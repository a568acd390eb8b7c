"""The state of a scaler that the rewrite disables: where it is saved, that is told."""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path

import pytest
import torch

from migrate.check.severity import Severity
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SAVED = {
    "an attribute": """
        class Trainer:
            def __init__(self):
                self.amp = torch.cuda.amp.GradScaler()

            def save(self, path):
                torch.save({'amp': self.amp.state_dict()}, path)
        """,
    "an optional one": """
        def main(half, path):
            half = GradScaler('cuda') if half else None
            fit(half)
            torch.save({'amp': half.state_dict() if half else None}, path)
        """,
    "given to a function": """
        def main(path):
            mine = GradScaler('cuda')
            fit(mine)
            torch.save(mine.state_dict(), path)
        """,
    "a parameter": """
        def save(grad_scaler, path):
            torch.save(grad_scaler.state_dict(), path)
        """,
    "a parameter by its type": """
        def save(mine: GradScaler | None, path):
            torch.save(mine.state_dict(), path)
        """,
}
NOT_SAVED = {
    "one in a variable, which stays for its state": """
        def main(loss, optimizer, path):
            scaler = GradScaler('cuda')
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            torch.save(scaler.state_dict(), path)
        """,
    "one that was disabled before": """
        class Trainer:
            def __init__(self):
                self.amp = GradScaler('cuda', enabled=False)

            def save(self, path):
                torch.save({'amp': self.amp.state_dict()}, path)
        """,
    "one that a function receives for its state only": """
        def save(path, scaler, epoch):
            torch.save({'scaler': scaler.state_dict(), 'epoch': epoch}, path)

        def main(loss, optimizer, path, amp):
            scaler = torch.cuda.amp.GradScaler(enabled=amp == "fp16")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            save(path, scaler, epoch=1)
            save(path, scaler, epoch=2)
        """,
    "one that the original switches off, given to a function": """
        def save(path, scaler):
            torch.save(scaler.state_dict(), path)

        def main(path):
            half = GradScaler('cuda', enabled=False)
            fit(half)
            save(path, half)
        """,
    "another object of the name": """
        def main(path):
            scaler = Standardize()
            torch.save(scaler.state_dict(), path)
        """,
    "a parameter of another type": """
        def save(scaler: Standardize, path):
            torch.save(scaler.state_dict(), path)
        """,
}


# Where the original's scaler is enabled under all conditions.
SEVERITY = dict.fromkeys(("an attribute", "given to a function"), Severity.WARNING)


def found(script: str) -> list[Severity]:
    text = f"import torch\nfrom torch.amp import GradScaler\n\n\n{cleandoc(script)}\n"
    done = rewrite_source(parse(text.encode(), Path("script.py")))
    return [note.severity for note in done.findings if "is empty" in note.message]


@pytest.mark.parametrize("name", SAVED)
def test_an_empty_state_that_is_saved_is_told(name: str) -> None:
    assert found(SAVED[name]) == [SEVERITY.get(name, Severity.INFO)]


def test_a_scaler_whose_state_a_function_saves_keeps_it_for_cuda() -> None:
    """The loop goes without the scaler, and the rewritten script has no finding."""
    script = NOT_SAVED["one that a function receives for its state only"]
    source = parse(f"import torch\n\n\n{cleandoc(script)}\n".encode(), Path("train.py"))
    done = rewrite_source(source)
    text = done.data.decode().replace("'", '"')
    assert 'scaler = torch.amp.GradScaler("cpu", enabled=amp == "fp16")' in text
    assert "    loss.backward()\n    optimizer.step()\n" in text
    assert not done.findings
    again = rewrite_source(parse(done.data, Path("train.py")))
    assert not again.changed
    assert not again.findings


@pytest.mark.parametrize("name", NOT_SAVED)
def test_other_states_are_not(name: str) -> None:
    assert not found(NOT_SAVED[name])


def test_torch_loads_no_empty_state_and_the_condition_that_is_advised_helps() -> None:
    state = torch.amp.GradScaler("cpu", enabled=False).state_dict()
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(RuntimeError, match="source state dict is empty"):
        scaler.load_state_dict(state)
    assert not state


def test_the_scale_of_a_wrapper_of_the_script_is_one() -> None:
    """Swin's wrapper, in one file with the training: the first step ended in a KeyError."""
    script = cleandoc(
        """
        import torch


        class NativeScaler:
            def __init__(self):
                self._scaler = torch.cuda.amp.GradScaler()

            def state_dict(self):
                return self._scaler.state_dict()


        loss_scaler = NativeScaler()
        print(f"{loss_scaler.state_dict()['scale']:.1f}")
        """
    )
    done = rewrite_source(parse(script.encode(), Path("train.py")))
    assert "{loss_scaler.state_dict().get('scale', 1.0):.1f}" in done.data.decode()
