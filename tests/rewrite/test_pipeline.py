"""What the engine promises whatever the rules: imports, comments, conflicts, nothing unaccounted."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable
from pathlib import Path

import libcst as cst
import pytest

from migrate.check.hazard import Severity
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Note, Rewrite
from migrate.rewrite.rule import Edit, Rule, Safety, left_alone, reported
from migrate.rewrite.withdrawn import Withdrawn
from migrate.rewrite.workspace import Workspace
from migrate.syntax.source import parse

EXAMPLES = (left_alone("x"), reported("y", "z"))


def run(script: str, rules: list[Rule] | None = None) -> Rewrite:
    data = (textwrap.dedent(script).strip() + "\n").encode()
    return rewrite_source(parse(data, Path("script.py")), rules)


def text(script: str) -> str:
    return run(script).data.decode()


def clean(script: str) -> str:
    return inspect.cleandoc(script) + "\n"


class _Rename(Rule):
    """Rename one name to another."""

    name = "rename"
    code = "XLA899"
    safety = Safety.REPORT_ONLY
    nodes = (cst.Name,)
    examples = EXAMPLES

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit]:
        assert isinstance(node, cst.Name)
        if node.value == self._old:
            new = cst.Name(self._new)
            yield self.edit(node, lambda _: new, f"{self._old} → {self._new}", consumes=[node])


class _OtherRename(_Rename):
    """Rename it to something else."""

    name = "other-rename"
    code = "XLA899"
    safety = Safety.REPORT_ONLY
    examples = EXAMPLES


class _Third(_Rename):
    """Rename another name."""

    name = "third"
    code = "XLA899"
    safety = Safety.REPORT_ONLY
    examples = EXAMPLES


class _RenameAll(Rule):
    """Make a name that begins with a letter longer, again and again."""

    name = "rename-all"
    code = "XLA899"
    safety = Safety.REPORT_ONLY
    nodes = (cst.Name,)
    examples = EXAMPLES

    def __init__(self, letter: str) -> None:
        self._letter = letter

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit]:
        assert isinstance(node, cst.Name)
        if node.value.startswith(self._letter):
            new = cst.Name(f"{node.value}1")
            yield self.edit(node, lambda _: new, "longer", consumes=[node])


class _Failing(Rule):
    """Fail where a name is met."""

    name = "failing"
    code = "XLA899"
    safety = Safety.REPORT_ONLY
    nodes = (cst.Name,)
    examples = EXAMPLES

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit]:
        assert isinstance(node, cst.Name)
        if node.value == "c":
            raise KeyError("c")
        if node.value == "d":
            yield self.edit(node, lambda _: 1 / 0, "d fails")  # type: ignore[arg-type, return-value]


class TestWithdrawn:
    """Whatever one rule does wrong, the file is rewritten by the others and the line is reported."""

    def settled(self, script: str, rules: list[Rule]) -> Rewrite:
        """Return a rewrite whose result a second run leaves as it is."""
        done = run(script, rules)
        again = rewrite_source(parse(done.data, Path("script.py")), rules)
        assert again.data == done.data
        assert done.fails()
        return done

    def test_two_rules_that_claim_one_node_are_reported_and_the_others_edit(self) -> None:
        rules = [_Rename("a", "b"), _OtherRename("a", "c"), _Third("x", "y")]
        done = self.settled("x = 1\na = 1", rules)
        assert done.data == b"y = 1\na = 1\n"
        assert {(note.line, note.rule) for note in done.findings} == {
            (2, "rename"),
            (2, "other-rename"),
        }
        assert all("do it by hand" in note.message for note in done.findings)

    def test_a_rule_that_changes_its_own_result_is_withdrawn(self) -> None:
        rules = [_Rename("a", "a_"), _RenameAll("b"), _Third("x", "y")]
        done = self.settled("x = 1\na = b1", rules)
        assert done.data == b"y = 1\na_ = b1\n"
        [note] = done.findings
        assert (note.line, note.rule) == (2, "rename-all")
        assert "own result" in note.message

    def test_two_rules_that_undo_each_other_are_withdrawn(self) -> None:
        done = self.settled("x = 1\na = 1", [_Rename("a", "b"), _OtherRename("b", "a")])
        assert done.data == b"x = 1\na = 1\n"

    def test_what_another_rule_has_enabled_is_changed_in_the_same_run(self) -> None:
        rules: list[Rule] = [_Rename("a", "a_"), _OtherRename("a_", "a__")]
        done = run("a = 1", rules)
        assert done.data == b"a__ = 1\n"
        assert not done.findings

    def test_a_result_that_does_not_parse_is_withdrawn(self) -> None:
        done = self.settled("x = 1\na = 1", [_Rename("a", "class"), _Third("x", "y")])
        assert done.data == b"y = 1\na = 1\n"
        [note] = done.findings
        assert (note.line, note.rule) == (2, "rename")
        assert "does not parse" in note.message

    def test_a_rule_that_fails_keeps_nothing_else_from_being_rewritten(self) -> None:
        done = self.settled("x = 1\nc = 1\nd = 1", [_Failing(), _Third("x", "y")])
        assert done.data == b"y = 1\nc = 1\nd = 1\n"
        assert {(note.line, note.rule) for note in done.findings} == {
            (2, "failing"),
            (3, "failing"),
        }

    def test_a_finding_for_an_edit_that_is_withdrawn_fails_whatever_the_rule(self) -> None:
        [note] = Withdrawn("pinned-memory", 1, 2, "it failed").notes(
            [Note(1, 1, "pinned-memory", "pin_memory goes"), Note(3, 1, "pinned-memory", "too")]
        )
        assert note.severity is Severity.ERROR

    def test_a_folder_is_rewritten_as_far_as_its_rules_agree(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rules = (_Rename("a", "b"), _OtherRename("a", "c"), _RenameAll("q"), _Third("x", "y"))
        monkeypatch.setattr("migrate.rewrite.pipeline.rules_for", lambda target: rules)
        script = "import torch\n\ntorch.cuda.synchronize()\nx = 1\na = 1\nq0 = 1\n"
        (tmp_path / "train.py").write_text(script)
        [file] = rewrite_folder(tmp_path, processes=1).files
        assert not file.problem
        assert file.after.decode() == script.replace("x =", "y =")
        reported = {(note.line, note.rule) for note in file.findings}
        assert reported >= {(5, "rename"), (5, "other-rename"), (6, "rename-all")}


def test_nested_edits_both_survive() -> None:
    script = """
        import torch
        from torch.nn.parallel import DistributedDataParallel as DDP

        model = DDP(torch.nn.Linear(2, 3).cuda(), device_ids=[0])
    """
    assert 'DDP(torch.nn.Linear(2, 3).to("xla"), gradient_as_bucket_view=True)' in text(script)


class TestImports:
    def test_an_import_goes_when_its_last_use_goes_and_only_then(self) -> None:
        script = """
            import os, sys
            import shutil
            import torch.distributed as dist

            os.environ["MASTER_ADDR"] = "localhost"
            dist.init_process_group("gloo", rank=0, world_size=1)
        """
        # sys and shutil were unused from the start: the author's affair
        assert text(script) == clean(
            """
            import sys
            import shutil
            import torch.distributed as dist
            import torch_xla.distributed.xla_backend

            dist.init_process_group("xla", init_method="xla://")
            """
        )

    def test_one_name_of_several_goes_and_the_layout_stays(self) -> None:
        script = """
            from torch.multiprocessing import (
                Queue,
                spawn,
            )

            def worker(rank, queue):
                queue.put(rank)

            if __name__ == "__main__":
                spawn(worker, args=(Queue(),), nprocs=2)
        """
        assert text(script).startswith(
            "import torch_xla\nfrom torch.multiprocessing import (\n    Queue,\n)\n"
        )

    def test_an_import_that_binds_the_package_stays(self) -> None:
        script = """
            import torch.multiprocessing

            def worker(rank):
                torch.zeros(rank)

            if __name__ == "__main__":
                torch.multiprocessing.spawn(worker, nprocs=2)
        """
        assert "import torch.multiprocessing\n" in text(script)
        with_another = "import torch\n" + inspect.cleandoc(script)
        assert "torch.multiprocessing" not in text(with_another)

    def test_comments_above_a_removed_import_stay(self) -> None:
        script = """
            # standard library
            import os
            # frameworks
            import torch

            os.environ["MASTER_PORT"] = "1"
        """
        assert text(script) == clean(
            """
            # standard library
            # frameworks
            import torch
            """
        )

    def test_existing_names_are_used(self) -> None:
        script = """
            import torch.multiprocessing as mp
            import torch_xla as xla
            import torch_xla.runtime as runtime

            def worker(rank, world_size):
                print(world_size)

            if __name__ == "__main__":
                mp.spawn(worker, args=(world_size,), nprocs=world_size)
        """
        after = text(script)
        assert "xla.launch(worker)" in after
        assert "world_size = runtime.world_size()" in after
        assert "import torch_xla\n" not in after

    def test_a_name_of_the_user_is_not_taken(self) -> None:
        script = """
            import torch.multiprocessing as mp

            xr = "an x-ray"

            def worker(rank, n):
                print(n, xr)

            if __name__ == "__main__":
                mp.spawn(worker, args=(n,), nprocs=n)
        """
        assert "import torch_xla.runtime as xr_\n" in text(script)
        assert "n = xr_.world_size()" in text(script)

    def test_imports_come_before_what_torch_xla_patches(self) -> None:
        script = """
            '''Train.'''
            from __future__ import annotations

            import sys

            # clipping
            from torch.nn.utils import clip_grad_norm_
            import torch.distributed as dist

            dist.init_process_group("nccl")
        """
        assert text(script) == clean(
            """
            '''Train.'''
            from __future__ import annotations

            import sys

            import torch_xla.distributed.xla_backend
            # clipping
            from torch.nn.utils import clip_grad_norm_
            import torch.distributed as dist

            dist.init_process_group("xla", init_method="xla://")
            """
        )

    def test_a_script_whose_imports_are_all_inside_functions(self) -> None:
        script = """
            '''Train.'''
            def main():
                import torch.distributed as dist
                dist.init_process_group("nccl")
        """
        assert text(script) == clean(
            """
            '''Train.'''

            import torch_xla.distributed.xla_backend


            def main():
                import torch.distributed as dist
                dist.init_process_group("xla", init_method="xla://")
            """
        )


class TestComments:
    def test_own_line_comments_of_removed_statements_stay(self) -> None:
        script = """
            import os
            import torch.distributed as dist

            def setup():
                # where rank 0 listens
                os.environ["MASTER_ADDR"] = "localhost"

                # any free port
                os.environ["MASTER_PORT"] = "12355"
                # the group
                dist.init_process_group("gloo")  # all ranks
        """
        after = text(script)
        for comment in ("where rank 0 listens", "any free port", "the group", "all ranks"):
            assert f"# {comment}" in after

    def test_comments_inside_edited_calls_stay(self) -> None:
        script = """
            import torch.distributed as dist

            dist.init_process_group(
                "nccl",  # the fastest
                timeout=delta,  # long enough
            )
        """
        assert text(script) == clean(
            """
            import torch.distributed as dist
            import torch_xla.distributed.xla_backend

            dist.init_process_group(
                "xla",  # the fastest
                init_method="xla://",
                timeout=delta,  # long enough
            )
            """
        )

    def test_a_comment_that_goes_with_its_code_is_said_to(self) -> None:
        done = run(
            """
            import os
            import torch

            os.environ["MASTER_PORT"] = "12355"  # any free port
            torch.zeros(3)  # stays
            """
        )
        messages = [(note.line, note.message) for note in done.edits if note.rule == "comments"]
        assert messages == [(4, "removed with the code that it is about: # any free port")]

    def test_a_block_that_loses_its_last_statement_still_parses(self) -> None:
        script = """
            import os

            def setup():
                # nothing else
                os.environ["MASTER_ADDR"] = "localhost"
        """
        after = text(script)
        compile(after, "script.py", "exec")
        assert "# nothing else" in after


class TestNothingUnaccounted:
    @pytest.mark.parametrize(
        ("script", "said"),
        [
            ("import torch\nwait = torch.cuda.synchronize", "torch_xla.sync(wait=True)"),
            ("from torch import cuda\nfree = cuda.empty_cache", "torch.cuda.empty_cache"),
            ("import torch.cuda.amp as amp\nmade = amp.GradScaler", "needs no scaler"),
            ("import torch.distributed as d\nwait = d.barrier", "does nothing on XLA"),
            ("import torch.distributed as d\nop = d.ReduceOp.AVG", "raises on XLA"),
            ("import os\nrank = os.environ['RANK']", "RANK is not set"),
            ("import os\nrank = os.environ.get('LOCAL_RANK', 0)", "LOCAL_RANK is not set"),
            ("names = ['nccl']", "'nccl'"),
            ("name = f'cuda:{3}'", "the device on XLA"),
            ("jobs = {}\njobs[f'cuda:{3}'] = []", "the device on XLA"),
            (
                "from torch.nn.parallel import DistributedDataParallel\nw = DistributedDataParallel",
                "see",
            ),
            ("import torch\ntorch.save(state, 'x')", "on all ranks"),
            ("def f(x):\n    return x.is_cuda", "is False on XLA"),
            ("import torch.distributed as d\nd.new_subgroups()", "not known to work"),
            ("from apex import amp\namp.half_function(f)", "needs CUDA"),
        ],
    )
    def test_left_over_constructs_are_reported_with_their_place(
        self, script: str, said: str
    ) -> None:
        done = run(script)
        assert not done.changed
        assert any(said in note.message for note in done.findings), done.findings
        assert done.findings[0].line == len(script.splitlines())

    @pytest.mark.parametrize(
        "script",
        [
            "import torch\nx = torch.zeros(3)",
            "import torch.distributed as dist\ndist.all_reduce(x)\nprint(dist.get_rank())",
            "class torch:\n    cuda = None\n\ntorch.cuda.synchronize()",
            "from nccl_tools import barrier\nbarrier()",
            "text = 'RANK'",
        ],
    )
    def test_what_is_not_ours_is_not_reported(self, script: str) -> None:
        done = run(script)
        assert not done.changed
        assert done.findings == ()
