"""Which loops train, over functions, classes and files; every case is a pattern of public scripts."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import ClassVar

import pytest

from migrate.model.calls.analysis import Analysis
from migrate.model.facts import ModuleCalls, calls_of_file, calls_of_script
from migrate.model.project.project import Project
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse


def written(folder: Path, files: dict[str, str]) -> Path:
    """Write the files and return the folder."""
    for name, source in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source).strip() + "\n")
    return folder


def facts(source: str) -> ModuleCalls:
    data = (textwrap.dedent(source).strip() + "\n").encode()
    return calls_of_script(Path("no-such-script.py"), data)


def loops(source: str) -> list[str]:
    """Return the lines of the step loops."""
    lines = textwrap.dedent(source).strip().splitlines()
    return [lines[number - 1].strip() for number in sorted(facts(source).step_loops)]


def reached(folder: Path, script: str) -> set[tuple[str, int]]:
    """Return file and line of the step loops that running `script` reaches."""
    project = Project.of_script(folder / script, root=folder)
    analysis = Analysis(project)
    found = analysis.reached_from(folder / script) & analysis.step_loops
    places = set()
    for path, scope in analysis.scopes.items():
        for root in (scope.region, scope.guard, *(f.region for f in scope.functions)):
            places |= {
                (path.name, r.loop.lineno) for r in analysis.regions(root) if r in found and r.loop
            }
    return places


@pytest.mark.parametrize(
    ("source", "loop"),
    [
        pytest.param(
            """
            def train(epochs, loader):
                for epoch in range(epochs):
                    for x, y in loader:
                        loss(model(x), y).backward()
                        optimizer.step()
                    scheduler.step()
            """,
            "for x, y in loader:",
            id="innermost",
        ),
        pytest.param(
            """
            while True:
                for micro in range(4):
                    scaler.scale(model(x)).backward()
                scaler.step(optimizer)
            """,
            "while True:",
            id="micro-batches",
        ),
        pytest.param(
            """
            def train(loader):
                for x in loader:
                    def closure():
                        model(x).backward()
                    optimizer.step(closure)
            """,
            "for x in loader:",
            id="closure",
        ),
        pytest.param(
            """
            class Base:
                def fit(self):
                    for batch in self.loader:
                        self.turn(batch)

            class Classifier(Base):
                def turn(self, batch):
                    self.model(batch).backward()
                    self.opt.step()
            """,
            "for batch in self.loader:",
            id="method of a subclass",
        ),
        pytest.param(
            """
            class Scaler:
                def __call__(self, loss, optimizer):
                    self._scaler.scale(loss).backward()
                    self._scaler.step(optimizer)

            def main():
                apply = Scaler()
                for x in log.every(loader):
                    apply(model(x), optimizer)
            """,
            "for x in log.every(loader):",
            id="callable scaler",
        ),
        pytest.param(
            """
            from timm.utils import NativeScaler
            apply = NativeScaler()
            for x in loader:
                apply(model(x), optimizer)
            """,
            "for x in loader:",
            id="timm",
        ),
        pytest.param(
            """
            def turn(x):
                model(x).backward()
                optimizer.step()

            def run(loader, function):
                for x in loader:
                    function(x)

            run(loader, turn)
            """,
            "for x in loader:",
            id="function in a parameter",
        ),
        pytest.param(
            """
            class Trainer:
                @property
                def turn(self):
                    return self._half if self.amp else self._full
                def _half(self, x):
                    self.model(x).backward()
                    self.optimizer.step()
                def fit(self, loader):
                    while self.going:
                        self.turn(next(loader))
            """,
            "while self.going:",
            id="property that returns a method",
        ),
        pytest.param(
            """
            import torch
            def make(model, optimizer):
                def turn(x):
                    model(x).backward()
                    optimizer.step()
                return turn
            turn = torch.compile(make(model, optimizer))
            for x in loader:
                turn(x)
            """,
            "for x in loader:",
            id="compiled closure from a factory",
        ),
        pytest.param(
            """
            from apex import amp
            for x in loader:
                with amp.scale_loss(model(x), optimizer) as scaled:
                    scaled.backward()
                optimizer.step()
            """,
            "for x in loader:",
            id="apex",
        ),
        pytest.param(
            """
            for x in loader:
                d_loss(x).backward()
                optim_d.step()
                g_loss(x).backward()
                optim_g.step()
            """,
            "for x in loader:",
            id="GAN",
        ),
        pytest.param(
            """
            batch = fetcher.next()
            while batch is not None:
                model(batch).backward()
                optimizer.step()
                batch = fetcher.next()
            """,
            "while batch is not None:",
            id="prefetcher",
        ),
    ],
)
def test_the_loop_is_found(source: str, loop: str) -> None:
    assert loops(source) == [loop]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            """
            model(x).backward()
            for optimizer in optimizers:
                optimizer.step()
            """,
            id="a loop over optimizers",
        ),
        pytest.param(
            """
            from torch.optim import lr_scheduler
            plan = lr_scheduler.StepLR(optimizer, 3)
            for epoch in range(3):
                probe(x).backward()
                plan.step()
            """,
            id="a scheduler by what it was made from",
        ),
        pytest.param(
            """
            for epoch in range(3):
                total.backward()
                observation, reward, done = world.step(action, 1, 2)
            """,
            id="an environment",
        ),
        pytest.param(
            """
            for epoch in range(3):
                total.backward()
                observation, done = world.step(action)
                reward = world.step(action)[1]
            """,
            id="a step whose result is taken apart",
        ),
        pytest.param(
            """
            import torch.multiprocessing as mp
            def worker(rank):
                model(rank).backward()
                optimizer.step()
            mp.spawn(worker, nprocs=2)
            """,
            id="a step without a loop",
        ),
        pytest.param(
            """
            import torch
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(side):
                for _ in range(3):
                    model(x).backward()
                    optimizer.step()
            """,
            id="the warm-up of a CUDA graph",
        ),
    ],
)
def test_other_loops_are_left_alone(source: str) -> None:
    assert loops(source) == []


def test_effects_end_at_the_step_loop() -> None:
    source = """
        def train(loader):
            for x in loader:
                model(x).backward()
                optimizer.step()

        for epoch in range(3):
            train(loader)
            other.backward()
    """
    assert loops(source) == ["for x in loader:"]


def test_a_comment_marks_a_loop_by_hand() -> None:
    source = """
        # migrate: step
        for batch in loader:
            engine.run(batch)  # nobody knows what this does
        for batch in loader:  # migrate: step
            for part in batch:
                part.backward()
                optimizer.step()
        x = 1  # migrate: step
    """
    found = facts(source)
    assert found.step_loops == {2, 4}
    assert found.marked == {2, 4}
    assert list(found.unused_marks) == [8]


def test_deepspeed_is_an_obstacle_and_no_step() -> None:
    source = """
        import deepspeed
        engine, optimizer, _, _ = deepspeed.initialize(model=model)
        for x in loader:
            engine.backward(engine(x))
            engine.step()
    """
    found = facts(source)
    assert not found.step_loops
    assert all("DeepSpeed" in why for why in found.obstacles.values())
    assert len(found.obstacles) == 2


class TestProject:
    FILES = {  # noqa: RUF012
        "main.py": """
            import engine
            from util.scaling import Scaler as LossScaler

            def main():
                scaler = LossScaler()
                for epoch in range(3):
                    engine.one_epoch(model, optimizer, scaler)

            if __name__ == "__main__":
                main()
        """,
        "engine.py": """
            def one_epoch(model, optimizer, apply):
                for x in loader:
                    apply(model(x), optimizer)

            def unused(model, optimizer):
                for x in loader:
                    model(x).backward()
                    optimizer.step()
        """,
        "util/scaling.py": """
            class Scaler:
                def __call__(self, loss, optimizer):
                    loss.backward()
                    optimizer.step()
        """,
    }

    def test_the_loop_of_another_file(self, tmp_path: Path) -> None:
        folder = written(tmp_path, self.FILES)
        assert reached(folder, "main.py") == {("engine.py", 2)}

    def test_a_folder_knows_what_is_passed_to_a_file(self, tmp_path: Path) -> None:
        folder = written(tmp_path, self.FILES)
        analysis = Analysis(Project.of_files(folder, sorted(folder.rglob("*.py"))))
        assert calls_of_file(analysis, folder / "engine.py").step_loops == {2, 6}
        definitions = calls_of_file(analysis, folder / "main.py").definitions
        assert {d.name for found in definitions.values() for d in found} == {"one_epoch", "main"}

    def test_relative_imports_and_packages(self, tmp_path: Path) -> None:
        files = {
            "pkg/__init__.py": "from .loops import fit",
            "pkg/loops.py": """
                from . import steps
                def fit(loader):
                    for x in loader:
                        steps.turn(x)
            """,
            "pkg/steps.py": """
                def turn(x):
                    model(x).backward()
                    optimizer.step()
            """,
            "scripts/train.py": "from pkg import fit\nfit([])",
        }
        folder = written(tmp_path, files)
        assert reached(folder, "scripts/train.py") == {("loops.py", 3)}

    @pytest.mark.parametrize(
        "line",
        ["import deep.inner.steps as steps", "from deep.inner import steps"],
    )
    def test_a_package_whose_folders_hold_the_modules(self, tmp_path: Path, line: str) -> None:
        """Neither `deep` nor `deep/inner` has an `__init__.py`, and `deep` no module of its own."""
        files = {
            "main.py": f"""
            import torch
            {line}

            for x in torch.ones(4, 2, device="cuda"):
                steps.train(x)
            """,
            "deep/inner/steps.py": """
            import torch

            model = torch.nn.Linear(2, 2)
            sgd = torch.optim.SGD(model.parameters(), lr=0.1)


            def train(x):
                model(x).mean().backward()
                sgd.step()
            """,
        }
        folder = written(tmp_path, files)
        assert reached(folder, "main.py") == {("main.py", 4)}

    def test_an_installed_library_comes_before_a_folder_without_init(self, tmp_path: Path) -> None:
        files = {
            "main.py": """
            import torch
            from torch_xla import sync
            import torch_xla

            torch_xla.sync()
            sync()
            """,
            "torch_xla/notes/made.py": "x = 1",
        }
        folder = written(tmp_path, files)
        project = Project.of_script(folder / "main.py", root=folder)
        analysis = Analysis(project)
        (scope,) = (s for path, s in analysis.scopes.items() if path.name == "main.py")
        names = {
            value
            for call, ran in analysis.running.items()
            for value in analysis.evaluator.values(call.func, scope)
        }
        assert {value.name for value in names} == {"torch_xla.sync"}

    def test_a_file_that_does_not_parse_is_external(self, tmp_path: Path) -> None:
        folder = written(
            tmp_path, {"main.py": "import broken\nbroken.x()", "broken.py": "print 'x'"}
        )
        project = Project.of_script(folder / "main.py", root=folder)
        assert set(project.modules) == {(folder / "main.py").resolve()}
        assert set(project.unread) == {(folder / "broken.py").resolve()}

    def test_nothing_above_the_project_is_read(self, tmp_path: Path) -> None:
        folder = written(tmp_path, {"above.py": "x = 1", "inner/main.py": "import above"})
        project = Project.of_script(folder / "inner" / "main.py", root=folder / "inner")
        assert [path.name for path in project.modules] == ["main.py"]


def test_columns_are_characters() -> None:
    found = facts("s = 'é'; loss.backward()")
    assert list(found.effects) == [(1, 24)]


def test_a_step_on_the_largest_batch_makes_no_step_loop_of_the_epochs() -> None:
    source = """
        class Trainer:
            def one(self, x):
                self.model(x).mean().backward()
                self.optimizer.step()

            def fit(self, loader):
                self.one(torch.zeros(loader.batch_size, MOST))  # all memory is there then
                for x in loader:
                    self.one(x)

        def main(loader):
            trainer = Trainer()
            for epoch in range(3):
                trainer.fit(loader)
    """
    assert loops(source) == ["for x in loader:"]


def test_a_generator_and_its_critic_are_two_step_loops() -> None:
    source = """
        def critic(x):
            judge(x).backward()
            judges.step()

        def criticise(x):
            for _ in range(5):
                critic(x)

        def generate(x):
            generator(x).backward()
            optimizer.step()

        for x in loader:
            criticise(x)
            generate(x)
    """
    assert sorted(loops(source)) == ["for _ in range(5):", "for x in loader:"]


def test_the_warm_up_of_a_graph_is_one_also_without_its_stream() -> None:
    source = """
        import torch

        def one(x):
            model(x).mean().backward()
            optimizer.step()

        def main(loader, still):
            for _ in range(11):
                one(still)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                one(still)
            for x in loader:
                one(x)
    """
    assert loops(source) == ["for x in loader:"]


def test_a_rewritten_warm_up_is_not_rewritten_again() -> None:
    source = """
        import torch

        def main(model, optimizer, loader, still):
            model.cuda()
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    model(still).mean().backward()
                    optimizer.step()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                model(still).mean().backward()
                optimizer.step()
            for x in loader:
                still.copy_(x)
                graph.replay()
    """
    script = parse(textwrap.dedent(source).strip().encode() + b"\n", Path("no-such-script.py"))
    done = rewrite_source(script)  # raises NotStableError otherwise
    assert b"torch_xla.step" not in done.data


class TestRegistries:
    FILES: ClassVar[dict[str, str]] = {
        "models/__init__.py": """
            import importlib
            import os
            names = [name[:-3] for name in os.listdir(os.path.dirname(__file__))]
            modules = [importlib.import_module(f'models.{name}') for name in names]
            from models.registry import MODELS
            def build(options):
                model = MODELS.get(options['kind'])(options)
                return model
        """,
        "models/registry.py": "MODELS = Registry()",
        "models/classifier.py": """
            from models.registry import MODELS
            @MODELS.register()
            class Classifier:
                def learn(self, x):
                    self.net(x).mean().backward()
                    self.optimizer.step()
                def test(self, x):
                    return self.net(x)
        """,
        "train.py": """
            from models import build
            def main(options, loader, validation):
                model = build(options)
                for epoch in range(3):
                    for x in loader:
                        model.learn(x)
                    for x in validation:
                        model.test(x)
        """,
    }

    def test_the_innermost_loop_is_named(self, tmp_path: Path) -> None:
        written(tmp_path, {**self.FILES, "setup.py": ""})
        found = facts_of(tmp_path / "train.py")
        assert not found.step_loops
        assert list(found.hidden) == [5]
        assert "`model.learn` trains in Classifier" in found.hidden[5]

    @pytest.mark.parametrize(
        "made",
        [
            """
            for module in [classifier]:
                model_cls = getattr(module, options['kind'], None)
                if model_cls is not None:
                    break
            model = model_cls(options)
            return model
            """,
            """
            made = KINDS[options['kind']]
            return made(options)
            """,
            """
            made = MODELS.get(options['kind'])
            model = made(options)
            return model
            """,
            """
            model = find(options['kind'])
            instance = model(options)
            return instance

            def find(kind):
                model = None
                for name, one in importlib.import_module(kind).__dict__.items():
                    if name == kind:
                        model = one
                return model
            """,
        ],
    )
    def test_a_class_that_is_found_first_and_called_then(self, tmp_path: Path, made: str) -> None:
        """NAFNet, Restormer and what else was made of an old BasicSR: nothing was said of their loops."""
        body = textwrap.indent(textwrap.dedent(made), "    ").replace("    def find", "def find")
        classifier = self.FILES["models/classifier.py"].replace("@MODELS.register()", "")
        files = {
            **self.FILES,
            "models/__init__.py": f"from models import classifier\ndef build(options):{body}",
            "models/classifier.py": classifier,
            "setup.py": "",
        }
        written(tmp_path, files)
        found = facts_of(tmp_path / "train.py")
        assert list(found.hidden) == [5]
        assert "`model.learn` trains in Classifier" in found.hidden[5]

    def test_a_class_named_by_a_string(self) -> None:
        source = """
            loss = tools.construct_class_by_name(**options)
            for phase in phases:
                loss.accumulate_gradients(phase)
                phase.opt.step()
        """
        assert list(facts(source).hidden) == [2]

    def test_a_class_named_by_a_file_of_settings(self, tmp_path: Path) -> None:
        """pytorch_sac: hydra makes the agent; nothing was said of the loop that trains it."""
        agents = """
            class Agent:
                def update(self, x):
                    self.net(x).mean().backward()
                    self.optimizer.step()
        """
        train = """
            import hydra
            import agents
            class Workspace:
                def __init__(self, cfg):
                    self.agent = hydra.utils.instantiate(cfg.agent)
                    self.meter = Meter()
                def run(self, env):
                    while env.more():
                        self.agent.update(env.turn())
                    while env.more():
                        self.meter.update(env.turn())
        """
        written(tmp_path, {"agents.py": agents, "train.py": train, "setup.py": ""})
        found = facts_of(tmp_path / "train.py")
        assert list(found.hidden) == [8]
        assert "`self.agent.update` trains in Agent" in found.hidden[8]

    def test_other_methods_of_such_objects_do_not_count(self) -> None:
        source = """
            meter = tools.construct_class_by_name(**options)
            for phase in phases:
                meter.update(phase)
                phase.opt.step()
            for x in loader:
                meter.update(x)
        """
        assert not facts(source).hidden

    def test_a_mark_makes_the_step(self) -> None:
        source = """
            loss = tools.construct_class_by_name(**options)
            for phase in phases:  # migrate: step
                loss.accumulate_gradients(phase)
                phase.opt.step()
        """
        found = facts(source)
        assert found.marked == {2}
        assert len(found.effects) == 2
        assert not found.hidden


def facts_of(script: Path) -> ModuleCalls:
    return calls_of_script(script, script.read_bytes())


def test_a_mark_inside_of_a_marked_loop_is_unused() -> None:
    source = """
        for batch in loader:  # migrate: step
            # migrate: step
            for part in batch:
                part.work()
    """
    found = facts(source)
    assert found.marked == {1}
    assert list(found.unused_marks) == [2]


def test_a_search_of_settings_is_no_half_of_a_step(tmp_path: Path) -> None:
    """YOLO's evolution: it reaches a backward pass that measures memory, and calls what trains."""
    train = """
        import torch
        def measure(model, x):
            for size in (1, 2):
                model(x[:size]).sum().backward()
        def train(model, loader, optimizer):
            measure(model, next(iter(loader)))
            for x in loader:
                model(x).mean().backward()
                optimizer.step()
        def search(model, loader, optimizer):
            model.cuda()
            for settings in range(3):
                train(model, loader, optimizer)
        if __name__ == "__main__":
            search(*make())
    """
    written(tmp_path, {"train.py": train, "setup.py": ""})
    found = facts_of(tmp_path / "train.py")
    assert found.step_loops == {7}
    assert list(found.hidden) == [3]


# Of ACEsuit/mace, made small: each turn gave longer names of what `ipex.optimize` gives, 100,000 of them.
CONVERTED = """
    import ipex
    import torch


    def to_fast(source, device):
        target = source.__class__(3, 3).to(device)
        copy(source.double(), target.to(device))
        return target


    def to_slow(source, device):
        target = source.__class__(3, 3).to(device)
        copy(source.double(), target.double().to(device))
        return target


    def copy(source, target):
        target.load_state_dict(source.to("cpu").state_dict())
        return target.double().to("cpu")


    def main(loader, device):
        model = torch.nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = ipex.optimize(model, optimizer=optimizer)
        model = to_fast(model, device)
        model = to_slow(model.to(device), device)
        model = copy(model, model.double())
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def test_what_results_of_results_give_has_an_end(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(CONVERTED))
    analysis = Analysis(Project.of_files(tmp_path, [script]))
    assert [loop.loop.lineno for loop in analysis.step_loops if loop.loop is not None] == [30]
    top = analysis.scopes[script.resolve()]
    (copied,) = (one for one in top.functions if one.name == "copy")
    last = copied.returns[0].func.value.func.value  # `target`
    assert 0 < len(analysis.evaluator.values(last, copied)) < 100
