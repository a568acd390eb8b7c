"""Values of the device that a function reads which is handed to another one; and findings at moved lines."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

FILES = {
    "base.py": """
        import torch
        from tools import apply, number


        def value(tensor):
            return tensor.item()


        class Base:
            def __init__(self, model):
                self.model = model
                self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def losses(self, x):
                raise NotImplementedError

            def run(self, loader):
                shown = []
                for x in loader:
                    x = x.cuda()
                    self.optimizer.zero_grad()
                    losses = self.losses(x)
                    losses["loss"].backward()
                    LINE
                    self.optimizer.step()
    """,
    "tools.py": """
        def apply(values, function):
            return {name: function(value) for name, value in values.items()}


        def number(value):
            return value.item() if hasattr(value, "item") else value
    """,
    "main.py": """
        import torch
        from base import Base


        class Trainer(Base):
            def losses(self, x):
                return {"loss": self.model(x).mean()}


        Trainer(torch.nn.Linear(8, 8).cuda()).run([torch.ones(4, 8)])
    """,
}


def rewritten(folder: Path, line: str, style: Style) -> tuple[str, list[tuple[str, int]]]:
    for name, text in FILES.items():
        (folder / name).write_text(textwrap.dedent(text).lstrip().replace("LINE", line))
    done = rewrite_folder(folder, options=RewriteOptions(style=style), processes=1)
    (base,) = [file for file in done.files if file.name.name == "base.py"]
    return base.after.decode(), [(note.rule, note.line) for note in base.findings]


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    "line",
    [
        "shown.append(apply(losses, lambda v: v.item()))",
        "shown.append(apply(losses, lambda v: v.item() if torch.is_tensor(v) else v))",
        "shown.append(apply(losses, lambda v: float(v)))",
        "shown.append(apply(losses, torch.Tensor.item))",
        "shown.append(apply(losses, float))",
        "shown.append(apply(losses, value))",
        "shown.append(list(map(float, losses.values())))",
    ],
)
def test_what_is_read_by_a_function_that_is_handed_on_stands_below_the_step(
    tmp_path: Path, line: str, style: Style
) -> None:
    text, _ = rewritten(tmp_path, line, style)
    assert text.index("self.optimizer.step()") < text.index(line)
    assert f"\n            {line}\n" in text


@pytest.mark.parametrize(
    "line",
    [
        "shown.append(apply(losses, lambda v: v.item()))",
        "shown.append(apply(losses, lambda v: v.item() if torch.is_tensor(v) else v))",
    ],
)
def test_it_is_reported_where_it_stood(tmp_path: Path, line: str) -> None:
    _, notes = rewritten(tmp_path, line, "native")
    before = (tmp_path / "base.py").read_text()
    assert ("XLA201", 1 + before[: before.index(line)].count("\n")) in notes


@pytest.mark.parametrize(
    "line",
    [
        "shown.append(apply(losses, lambda v: v.detach()))",
        "shown.append(sorted(losses, key=lambda name: len(name)))",
        "shown.append(apply(losses, torch.Tensor.detach))",
    ],
)
def test_what_is_not_read_stays_in_the_step(tmp_path: Path, line: str) -> None:
    text, notes = rewritten(tmp_path, line, "native")
    assert text.index(line) < text.index("self.optimizer.step()")
    assert not [rule for rule, _ in notes if rule.startswith("XLA20")]


READS = (b"saved =", b"first =")


def test_reads_that_the_rewrite_moves_are_reported_where_they_stood(tmp_path: Path) -> None:
    script = """
        import torch


        class Heads(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.heads = torch.nn.ModuleDict({"a": torch.nn.Linear(8, 8)})

            def forward(self, x):
                return {name: head(x) for name, head in self.heads.items()}


        def main(loader):
            model = Heads().cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x in loader:
                x = x.cuda()
                outs = model(x)
                saved = {name: out.detach().cpu() for name, out in outs.items()}
                first = outs["a"].cpu()
                sum(out.mean() for out in outs.values()).backward()
                optimizer.step()
                optimizer.zero_grad()
    """
    (tmp_path / "main.py").write_text(textwrap.dedent(script).lstrip())
    (file,) = rewrite_folder(tmp_path, processes=1).files
    text = file.after.decode()
    assert text.index("optimizer.zero_grad()") < text.index("saved = ")
    lines = [n.line for n in file.findings if n.rule == "XLA203"]
    assert lines == [1 + file.before.decode()[: file.before.index(at)].count("\n") for at in READS]


@pytest.mark.parametrize(
    "call", ["torch.cuda.synchronize()", "torch.cuda.current_stream().synchronize()"]
)
def test_a_wait_in_a_function_that_a_step_calls(tmp_path: Path, call: str) -> None:
    files = {
        "timing": f"import torch\n\n\ndef wait():\n    {call}\n",
        "main": """
            import torch
            from timing import wait


            def main(loader):
                model = torch.nn.Linear(8, 8).cuda()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for x in loader:
                    x = x.cuda()
                    model(x).mean().backward()
                    wait()
                    optimizer.step()
        """,
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text).lstrip())
    done = rewrite_folder(tmp_path, processes=1)
    (timing,) = [file for file in done.files if file.name.name == "timing.py"]
    assert b"    torch_xla.sync(wait=True)\n" in timing.after
    (note,) = timing.findings
    assert (note.rule, note.line) == ("XLA206", 5)
    assert "called from main.py:11" in note.message
