"""Gradient scalers: which go, which are disabled, and what stays around them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.engine import Rewrite, rewrite_source
from migrate.rewrite.source import parse

LOOP = """
    for batch in batches:
        loss = model(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


def run(script: str) -> Rewrite:
    data = (textwrap.dedent(script).strip() + "\n").encode()
    return rewrite_source(parse(data, Path("script.py")))


def text(script: str) -> str:
    return run(script).data.decode()


def in_function(before: str, after: str = "") -> str:
    head = "import torch\n\ndef train(model, batches, optimizer, args, save, load):\n"
    return f"{head}    {before}{LOOP}    {after}\n"


class TestGoes:
    @pytest.mark.parametrize(
        "made",
        [
            "torch.cuda.amp.GradScaler()",
            "torch.amp.GradScaler('cuda', enabled=args.amp)",
            "torch.cuda.amp.GradScaler(2.0**10, enabled=args.amp)",
        ],
    )
    def test_a_variable_with_plain_uses(self, made: str) -> None:
        after = text(in_function(f"scaler = {made}"))
        assert "scaler" not in after
        assert "loss.backward()" in after
        assert "optimizer.step()" in after

    @pytest.mark.parametrize(
        ("use", "left"),
        [
            ("save({'a': model, 's': scaler.state_dict()})", "save({'a': model})"),
            ("save({'s': scaler.state_dict(), 'a': model})", "save({'a': model})"),
            ("state = {}; state['s'] = 1", "state = {}; state['s'] = 1"),
            ("scaler.load_state_dict(load('s'))", ""),
        ],
    )
    def test_with_its_state(self, use: str, left: str) -> None:
        after = text(in_function("scaler = torch.cuda.amp.GradScaler()", use))
        assert "scaler" not in after
        assert left in after

    def test_only_the_variable_that_holds_it(self) -> None:
        script = in_function("scaler = torch.cuda.amp.GradScaler()") + (
            "\n\ndef fit(scaler, rows):\n    return scaler.transform(rows)\n"
        )
        after = text(script)
        assert "return scaler.transform(rows)" in after
        assert "GradScaler" not in after

    def test_branches_that_differ_stay(self) -> None:
        script = """
            import torch

            scaler = torch.cuda.amp.GradScaler()
            if amp:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
            else:
                loss.backward()
        """
        after = text(script)
        assert "if amp:" in after
        assert "else:" in after

    def test_branches_whose_question_does_something_stay(self) -> None:
        script = """
            import torch

            scaler = torch.cuda.amp.GradScaler()
            if next(flags):
                scaler.scale(loss).backward()
            else:
                loss.backward()
        """
        assert "if next(flags):" in text(script)

    def test_comments_of_one_branch_that_goes_are_named(self) -> None:
        script = """
            import torch

            scaler = torch.cuda.amp.GradScaler()
            # backward
            if amp:
                scaler.scale(loss).backward()
            else:
                loss.backward()  # plain
        """
        done = run(script)
        assert done.data.decode() == "# backward\nloss.backward()\n"
        assert any("# plain" in note.message for note in done.edits)


class TestIsDisabled:
    @pytest.mark.parametrize(
        "use",
        [
            "print(scaler.get_scale())",
            "if scaler.is_enabled():\n        pass",
            "other = scaler",
            "model.fit(scaler=scaler)",
            "if args.resume:\n        scaler.load_state_dict(load('s'))",
            "scaler.update(2.0)",
        ],
    )
    def test_where_a_use_is_not_plain(self, use: str) -> None:
        after = text(in_function("scaler = torch.cuda.amp.GradScaler()", use))
        assert "scaler = torch.cuda.amp.GradScaler(enabled=False)" in after
        assert "scaler.scale(loss).backward()" in after
        assert use in after

    def test_where_it_is_optional(self) -> None:
        made = "scaler = None\n    if args.amp:\n        scaler = torch.amp.GradScaler('cuda')"
        assert "scaler = torch.amp.GradScaler('xla', enabled=False)" in text(in_function(made))

    def test_where_it_is_global(self) -> None:
        made = "scaler = torch.cuda.amp.GradScaler()"
        script = f"import torch\n\n{made}\n\ndef reset():\n    global scaler\n{LOOP}"
        assert "GradScaler(enabled=False)" in text(script)

    def test_where_enabled_is_passed_by_position(self) -> None:
        made = "self.s = torch.cuda.amp.GradScaler(2.0, 2.0, 0.5, 2000, True)"
        assert "GradScaler(2.0, 2.0, 0.5, 2000, False)" in text(in_function(made))

    def test_of_old_torch_xla(self) -> None:
        script = "from torch_xla.amp import GradScaler\n\nself.scaler = GradScaler()\n"
        after = text(script)
        assert 'self.scaler = torch.amp.GradScaler("xla", enabled=False)' in after
        assert "torch_xla.amp" not in after

    def test_annotations_and_questions_are_fine(self) -> None:
        script = """
            from torch.cuda.amp import GradScaler

            def scale_of(scaler: GradScaler | None) -> float:
                return scaler.get_scale() if isinstance(scaler, GradScaler) else 1.0
        """
        done = run(script)
        assert not done.changed
        assert not [note for note in done.findings if note.rule in ("grad-scaler", "unhandled")]
