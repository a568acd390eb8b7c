"""Gradient scalers: which go, which are disabled, and what stays around them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch

from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.rewrite.rules.precision.grad_scaler import COMMENT
from migrate.syntax.source import parse

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

    def test_its_state_that_is_only_loaded(self) -> None:
        use = "scaler.load_state_dict(load('s'))"
        assert "scaler" not in text(in_function("scaler = torch.cuda.amp.GradScaler()", use))

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


class TestStaysForItsState:
    @pytest.mark.parametrize(
        ("made", "after"),
        [
            ("torch.cuda.amp.GradScaler()", "torch.amp.GradScaler('cpu')"),
            ("torch.amp.GradScaler()", "torch.amp.GradScaler('cpu')"),
            ("torch.amp.GradScaler('cuda', 2.0)", "torch.amp.GradScaler('cpu', 2.0)"),
            ("torch.amp.GradScaler(device='cuda')", "torch.amp.GradScaler(device='cpu')"),
            (
                "torch.cuda.amp.GradScaler(2.0**10, enabled=args.amp)",
                "torch.amp.GradScaler('cpu', 2.0**10, enabled=args.amp)",
            ),
        ],
    )
    @pytest.mark.parametrize(
        "use",
        [
            "save({'a': model, 's': scaler.state_dict()})",
            "state = {}; state['s'] = scaler.state_dict()",
            "save(scaler.state_dict())",
            "if args.resume:\n        scaler.load_state_dict(load('s'))\n    save(scaler.state_dict())",
        ],
    )
    def test_on_the_cpu(self, made: str, after: str, use: str) -> None:
        done = text(in_function(f"scaler = {made}", use))
        assert f"{COMMENT}\n    scaler = {after}\n" in done.replace('"', "'")
        assert use in done
        assert "scaler.scale" not in done
        assert "scaler.step" not in done
        assert text(done) == done

    def test_torch_is_imported_for_it(self) -> None:
        script = in_function("scaler = GradScaler()", "save(scaler.state_dict())").replace(
            "import torch", "from torch.cuda.amp import GradScaler"
        )
        done = text(script)
        assert done.startswith("import torch\n")
        assert 'scaler = torch.amp.GradScaler("cpu")' in done

    def test_its_state_is_what_a_scaler_of_cuda_loads(self) -> None:
        ours = torch.amp.GradScaler("cpu", init_scale=1024.0)
        theirs = torch.amp.GradScaler("cpu")
        theirs.load_state_dict(ours.state_dict())
        assert theirs.get_scale() == 1024.0
        ours.load_state_dict({**theirs.state_dict(), "scale": 8.0, "_growth_tracker": 7})
        assert ours.state_dict() == theirs.state_dict() | {"scale": 8.0, "_growth_tracker": 7}

    @pytest.mark.parametrize(
        ("made", "use"),
        [
            ("torch.cuda.amp.GradScaler()", "print(scaler.get_scale(), scaler.state_dict())"),
            ("torch.cuda.amp.GradScaler(**args)", "save(scaler.state_dict())"),
        ],
    )
    def test_not_where_it_is_used_for_more(self, made: str, use: str) -> None:
        done = run(in_function(f"scaler = {made}", use))
        assert "'cpu'" not in done.data.decode()
        assert "enabled=False" in done.data.decode() + "".join(f.message for f in done.findings)


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
        assert "scaler = torch.amp.GradScaler('xla', enabled=False)" in after.replace('"', "'")
        assert "scaler.scale(loss).backward()" in after
        assert use in after

    def test_where_it_is_optional(self) -> None:
        made = "scaler = None\n    if args.amp:\n        scaler = torch.amp.GradScaler('cuda')"
        assert "scaler = torch.amp.GradScaler('xla', enabled=False)" in text(in_function(made))

    def test_where_it_is_global(self) -> None:
        made = "scaler = torch.cuda.amp.GradScaler()"
        script = f"import torch\n\n{made}\n\ndef reset():\n    global scaler\n{LOOP}"
        assert 'GradScaler("xla", enabled=False)' in text(script)

    def test_where_enabled_is_passed_by_position(self) -> None:
        made = "self.s = torch.cuda.amp.GradScaler(2.0, 2.0, 0.5, 2000, True)"
        assert 'torch.amp.GradScaler("xla", 2.0, 2.0, 0.5, 2000, False)' in text(in_function(made))

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
