"""Which loop gets the step, which part of its body, and what is said about the rest."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse


def run(script: str) -> Rewrite:
    data = (textwrap.dedent(script).strip() + "\n").encode()
    return rewrite_source(parse(data, Path("script.py")))


def step_lines(script: str) -> list[str]:
    """Return the lines inside the step block of the rewritten script, without their indentation."""
    lines = run(script).data.decode().splitlines()
    (start,) = [i for i, line in enumerate(lines) if line.strip() == "with torch_xla.step():"]
    indent = len(lines[start]) - len(lines[start].lstrip())
    inside = []
    for line in lines[start + 1 :]:
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            break
        inside.append(line.strip())
    return [line for line in inside if line]


def reports(script: str) -> list[str]:
    return [note.message for note in run(script).findings if note.rule == "step"]


def test_timers_and_logging_stay_outside() -> None:
    script = """
        def train(loader, model, criterion, optimizer, timer):
            model.cuda()
            for i, (images, target) in enumerate(loader):
                timer.update(time.time() - end)
                images = images.cuda(non_blocking=True)
                target = target.cuda()
                loss = criterion(model(images), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.update(loss.item(), images.size(0))
                end = time.time()
    """
    assert step_lines(script) == [
        'images = images.to("xla", non_blocking=True)',
        'target = target.to("xla")',
        "loss = criterion(model(images), target)",
        "optimizer.zero_grad()",
        "loss.backward()",
        "optimizer.step()",
    ]
    assert reports(script) == []


def test_the_innermost_loop_with_both_effects_is_the_step() -> None:
    script = """
        def main(model, loader, optimizer):
            model.cuda()
            for epoch in range(3):
                for x, y in loader:
                    (model(x.cuda()) - y.cuda()).sum().backward()
                    optimizer.step()
                scheduler.step()
    """
    assert step_lines(script) == [
        '(model(x.to("xla")) - y.to("xla")).sum().backward()',
        "optimizer.step()",
    ]


def test_parts_of_what_was_moved_are_not_moved_again() -> None:
    script = """
        def train(loader, model, optimizer):
            model.cuda()
            for images, target in loader:
                images = images.cuda()
                target = target.cuda()
                optimizer.zero_grad()
                for part, labels in zip(images.chunk(2), target.chunk(2)):
                    (model(part) - labels).sum().backward()
                    optimizer.step()
    """
    assert step_lines(script) == ["(model(part) - labels).sum().backward()", "optimizer.step()"]
    assert reports(script) == []


def test_effects_are_followed_into_methods() -> None:
    script = """
        class Trainer:
            def __init__(self, model):
                self.model = model.cuda()

            def _run_batch(self, x, y):
                self.optimizer.zero_grad()
                (self.model(x) - y).sum().backward()
                self.optimizer.step()

            def fit(self):
                for epoch in range(3):
                    self._run_epoch(epoch)

            def _run_epoch(self, epoch):
                for x, y in self.loader:
                    x = x.cuda()
                    y = y.cuda()
                    self._run_batch(x, y)
                    self.seen += 1
    """
    assert step_lines(script) == ['x = x.to("xla")', 'y = y.to("xla")', "self._run_batch(x, y)"]


def test_accumulation_by_modulo_is_one_step_a_batch() -> None:
    script = """
        def train(model, loader, optimizer):
            model.cuda()
            for i, (x, y) in enumerate(loader):
                x, y = x.cuda(), y.cuda()
                loss = (model(x) - y).sum() / 4
                loss.backward()
                if (i + 1) % 4 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                log(i)
    """
    assert step_lines(script)[-1] == "optimizer.zero_grad()"
    assert "log(i)" not in step_lines(script)


def test_a_while_loop_over_steps() -> None:
    script = """
        def train(model, batches, optimizer):
            model.cuda()
            while step < 10:
                x = next(batches).cuda()
                model(x).sum().backward()
                optimizer.step()
                step += 1
    """
    assert step_lines(script) == [
        'x = next(batches).to("xla")',
        "model(x).sum().backward()",
        "optimizer.step()",
    ]


@pytest.mark.parametrize("name", ["scheduler", "lr_sched", "profiler", "self.env"])
def test_other_things_that_step_are_no_optimizers(name: str) -> None:
    script = f"""
        def train(self, model, loader, {name.split(".")[0].replace("self", "_")}):
            model.cuda()
            for x, y in loader:
                (model(x) - y).sum().backward()
                {name}.step()
    """
    assert "torch_xla.step" not in run(script).data.decode()


class TestInputs:
    LOOP = """
        def train(model, loader, optimizer, device):
            model.cuda()
            for {target} in {loader}:
                {first}
                loss = model(x).sum()
                loss.backward()
                optimizer.step()
    """

    def script(self, target: str, first: str = "pass", loader: str = "loader") -> str:
        return self.LOOP.format(target=target, first=first, loader=loader)

    def test_moved_where_the_script_does_not(self) -> None:
        after = run(self.script("x, y")).data.decode()
        assert 'x = x.to("xla")\n' in after  # y is not used in the step

    def test_not_moved_twice(self) -> None:
        assert run(self.script("x, y", "x = x.cuda()")).data.decode().count('x.to("xla")') == 1

    @pytest.mark.parametrize(
        ("target", "first", "loader"),
        [
            ("x", "pass", "loader"),  # a batch may be a list or a dictionary
            ("x, y", "x = x.to(device)", "loader"),  # to which device?
        ],
    )
    def test_reported_where_it_is_not_known(self, target: str, first: str, loader: str) -> None:
        script = self.script(target, first, loader)
        assert len(reports(script)) == 1
        assert "x" in reports(script)[0]

    def test_counters_are_no_inputs(self) -> None:
        assert reports(self.script("i", "x = batch(i).cuda()", "range(3)")) == []


def test_what_the_loop_goes_over_is_not_moved_where_the_model_is_given_something_else() -> None:
    script = """
        @torch.no_grad()
        def predict(model, clips, boxes):
            model.cuda()
            model.eval()
            for number, found in boxes.items():
                inputs = clips.at(number).cuda()
                box = torch.tensor(found[0]).float().cuda()
                preds = model(inputs, box)
                found[1] = preds.cpu()
    """
    text = run(script).data.decode()
    assert "found.to(" not in text
    assert "number.to(" not in text


def test_of_a_function_that_is_a_step_only_what_gets_the_batch_is_moved() -> None:
    """`model, optimizer, … = model.to('xla'), optimizer.to('xla'), …` stood in the step of gcn."""
    script = """
        import torch


        def train(epoch, model, optimizer, given, target):
            started = time.time()
            optimizer.zero_grad()
            loss = (model(*given) - target).pow(2).mean()
            loss.backward()
            optimizer.step()
            print(epoch, started)


        def main(pair, labels):
            model = torch.nn.Linear(3, 3).to('cuda')
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for epoch in range(3):
                train(epoch, model, optimizer, pair, labels)
    """
    assert step_lines(script) == [
        "optimizer.zero_grad()",
        "loss = (model(*given) - target).pow(2).mean()",
        "loss.backward()",
        "optimizer.step()",
    ]


def test_a_log_that_the_update_needs_is_to_be_divided() -> None:
    (message,) = reports(
        """
        import torch
        import torch.distributed as dist


        def train(model, loader, optimizer, scheduler, run):
            model.cuda()
            for x in loader:
                model(x.cuda()).sum().backward()
                if dist.get_rank() == 0:
                    run.log({"rate": scheduler.get_last_lr()[0]})
                optimizer.step()
                scheduler.step()
        """
    )
    assert "keep what it uses in variables here, on all replicas" in message
