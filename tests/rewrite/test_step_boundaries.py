"""Where a step begins and ends, in the shapes of public training loops that are hard to tell."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.hazard import Severity
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.left.after import READS
from migrate.rewrite.pipeline import rewrite
from migrate.rewrite.rules.step.evaluation import READ_IN_FORWARD, UNSEEN
from migrate.rewrite.rules.step.inputs import NOT_MOVED, NOT_SHOWN
from migrate.rewrite.rules.step.steps import FORWARD_ABOVE, ON_CPU
from migrate.rewrite.rules.step.wrapping import READS_INSIDE

STEP = "with torch_xla.step():"


def after(folder: Path, source: str, more: dict[str, str] | None = None) -> tuple[str, list[str]]:
    """Return what becomes of a script, and what is left to do."""
    for name, text in {**(more or {}), "train.py": source}.items():
        (folder / name).write_text(textwrap.dedent(text).lstrip())
    if more:
        done = rewrite_folder(folder, processes=1)
        assert not done.problems
        file = next(one for one in done.files if one.name == Path("train.py"))
        return file.after.decode(), [note.message for note in file.findings]
    one = rewrite(folder / "train.py")
    # Reads of every step are mentioned, and nothing is to be done by hand.
    mentioned = [
        note for note in one.findings if note.rule in READS and note.severity is Severity.INFO
    ]
    return one.data.decode(), [note.message for note in one.findings if note not in mentioned]


def block(text: str, number: int = 0) -> str:
    """Return what stands in the step block `number`."""
    lines = text.splitlines()
    start = [at for at, line in enumerate(lines) if line.strip() == STEP][number]
    depth = len(lines[start]) - len(lines[start].lstrip())
    inside = []
    for line in lines[start + 1 :]:
        if line.strip() and len(line) - len(line.lstrip()) <= depth:
            break
        inside.append(line)
    return "\n".join(inside)


RECIPE = """
    import time

    import torch
    from torch import nn

    import training


    class Recipe:
        def __init__(self, cfg):
            self._device = torch.device("cuda")
            self._model = nn.Linear(4, 4).to(self._device)
            self.optimizer = torch.optim.AdamW(self._model.parameters())
            self._loss_fn = nn.CrossEntropyLoss()
            self._profiler = training.profiler()

        def _loss_step(self, batch):
            labels = batch.pop("labels")
            return self._loss_fn(self._model(**batch), labels)

        def save_checkpoint(self, step):
            print(step)

        def validate(self):
            print(self._model)

        def train(self):
            running_loss = num_tokens = 0
            for idx, batch in enumerate(self._dataloader):
                training.batch_to_device(batch, self._device)
                current_num_tokens = (batch["labels"] != self._loss_fn.ignore_index).sum()
                num_tokens += current_num_tokens
                current_loss = self._loss_step(batch) * current_num_tokens
                running_loss += current_loss
                current_loss.backward()
                if (idx + 1) % self._gradient_accumulation_steps == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad(set_to_none=True)
                    self.global_step += 1
                    loss_value = (running_loss / num_tokens).item()
                    print(loss_value)
                    if self.global_step % self.save_every_n_steps == 0:
                        self.save_checkpoint(self.global_step)
                    running_loss, num_tokens = 0.0, 0
                    t0 = time.perf_counter()
                    self.validate()
                self._profiler.step()
"""
TRAINING = """
    import torch


    def profiler():
        return torch.profiler.profile()


    def batch_to_device(batch, device):
        for key, value in batch.items():
            batch[key] = value.to(device)
"""


def test_the_forward_is_in_and_saves_and_evaluations_are_out(tmp_path: Path) -> None:
    text, left = after(tmp_path, RECIPE, {"training.py": TRAINING})
    inside = block(text)
    assert "self._loss_step(batch)" in inside
    assert "self.optimizer.zero_grad" in inside
    for out in (".item()", "save_checkpoint", "validate", "_profiler", "perf_counter"):
        assert out not in inside
        assert out in text
    assert not [message for message in left if NOT_MOVED in message or NOT_SHOWN in message]


def test_a_loop_with_steps_of_its_own_lies_in_no_other_step(tmp_path: Path) -> None:
    source = """
        import torch

        gen, disc = torch.nn.Linear(4, 4).cuda(), torch.nn.Linear(4, 1).cuda()
        opt_g = torch.optim.Adam(gen.parameters())
        opt_d = torch.optim.Adam(disc.parameters())


        def critic(x):
            for _ in range(5):
                loss = disc(gen(x).detach()).mean()
                opt_d.zero_grad()
                loss.backward()
                opt_d.step()


        def train(loader):
            for x, _ in loader:
                x = x.cuda()
                {inner}
                loss_g = -disc(gen(x)).mean()
                opt_g.zero_grad()
                loss_g.backward()
                opt_g.step()
                print(loss_g.item())
    """
    text, left = after(tmp_path, source.format(inner="critic(x)"))
    assert text.count(STEP) == 2
    assert "critic(x)" not in block(text, 1)
    assert not left


def test_optimizers_and_schedulers_are_told_apart_in_a_zip(tmp_path: Path) -> None:
    source = """
        import torch


        class Muon(torch.optim.Optimizer):
            def step(self):
                for p in self.param_groups[0]["params"]:
                    p.data.add_(p.grad, alpha=-0.1)


        model = torch.nn.Linear(4, 4).cuda()
        optimizers = [torch.optim.AdamW([model.bias]), Muon([model.weight], {})]
        schedulers = [torch.optim.lr_scheduler.LambdaLR(one, lambda s: 1.0) for one in optimizers]
        for step in range(100):
            loss = model(torch.randn(4, 4, device="cuda")).mean()
            loss.backward()
            for opt, sched in zip(optimizers, schedulers):
                opt.step()
                sched.step()
            model.zero_grad(set_to_none=True)
            print(step)
    """
    text, left = after(tmp_path, source)
    assert "opt.step()" in block(text)
    assert "loss.backward()" in block(text)
    assert not left


def test_numpy_and_files_are_no_part_of_a_step(tmp_path: Path) -> None:
    source = """
        import glob

        import cv2
        import numpy as np
        import torch

        device = torch.device("cuda")
        model = torch.nn.Linear(4, 4).to(device).eval()
        for idx, path in enumerate(sorted(glob.glob("*.png"))):
            img = cv2.imread(path).astype(np.float32) / 255.0
            img = torch.from_numpy(np.transpose(img[:, :, [2, 1, 0]], (2, 0, 1))).float()
            img = img.unsqueeze(0).to(device)
            with torch.no_grad():
                output = model(img)
                output = output[:, :, 0:3]
            output = output.data.squeeze().float().cpu().clamp_(0, 1).numpy()
            if output.ndim == 3:
                output = np.transpose(output[[2, 1, 0], :, :], (1, 2, 0))
            output = (output * 255.0).round().astype(np.uint8)
            cv2.imwrite("out.png", output)
    """
    text, left = after(tmp_path, source)
    inside = block(text)
    assert "img.unsqueeze(0).to(device)" in inside
    assert "output[:, :, 0:3]" in inside
    assert "np." not in inside
    assert "imread" not in inside
    assert ".cpu()" not in inside
    assert not left


MAIN = """
    import torch
    from evaluation import evaluate

    device = torch.device("cuda")
    evaluate(torch.nn.Linear(2, 2).to(device), [], device)
"""
EVALUATION = """
    import torch


    @torch.no_grad()
    def evaluate(model, loader, device):
        model.eval()
        for images, labels in loader:
            outputs = model(images.to(device))
            print(outputs.argmax(1).tolist())
"""


def test_the_device_of_an_evaluation_comes_from_another_file(tmp_path: Path) -> None:
    text, left = after(tmp_path, EVALUATION, {"evaluation.py": EVALUATION, "main.py": MAIN})
    assert STEP not in text  # nobody is seen to run train.py's
    assert UNSEEN in left
    done = rewrite_folder(tmp_path, processes=1)
    other = next(one for one in done.files if one.name == Path("evaluation.py"))
    assert "outputs = model(images.to(device))" in block(other.after.decode())
    assert not other.findings


def test_an_undecided_evaluation_is_only_to_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(EVALUATION).lstrip())
    done = rewrite(tmp_path / "train.py")
    assert len(done.findings) == 1
    assert not done.fails()


@pytest.mark.parametrize("place", ["for images, labels in loader:  {}", "{}\n        for images"])
def test_a_users_word_says_that_a_loop_runs_on_the_cpu(tmp_path: Path, place: str) -> None:
    mark = place.format("# migrate: cpu")
    marked = EVALUATION.replace(
        "for images, labels in loader:" if "loader" in place else "for images", mark
    )
    assert "# migrate: cpu" in marked
    text, left = after(tmp_path, marked)
    assert STEP not in text
    assert not left


TRAINS = """
    import torch


    def train(model, loader, optimizer, device):
        {above}
        for x in loader:  # migrate: cpu
            loss = model({x}).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def test_the_word_holds_for_training_too(tmp_path: Path) -> None:
    text, left = after(tmp_path, TRAINS.format(above="print(device)", x="x.to(device)"))
    assert STEP not in text
    assert not left


@pytest.mark.parametrize(
    ("above", "x", "line"),
    [("print(device)", "x.cuda()", 7), ("model.cuda()", "x", 5)],
    ids=["in the loop", "above it"],
)
def test_the_word_is_refused_where_the_loop_is_on_the_device(
    tmp_path: Path, above: str, x: str, line: int
) -> None:
    text, left = after(tmp_path, TRAINS.format(above=above, x=x))
    assert STEP in text
    assert ON_CPU.format(f"line {line}") in left


def test_a_function_that_reads_comes_after_the_step_of_an_evaluation(tmp_path: Path) -> None:
    source = """
        import torch
        from metrics import accuracy


        @torch.no_grad()
        def evaluate(model, loader):
            model.cuda().eval()
            hits = 0
            for images, labels in loader:
                logits = model(images.cuda()).softmax(1)
                logits = logits * 100
                hits += accuracy(logits, labels.cuda())
            return hits
    """
    metrics = "def accuracy(x, y):\n    return (x.argmax(1) == y).sum().item()\n"
    text, left = after(tmp_path, source, {"metrics.py": metrics})
    assert "logits * 100" in block(text)
    assert "accuracy" not in block(text)
    assert all("reads values of the device, at every step of the evaluation" in one for one in left)


def test_what_an_agent_does_in_its_world_is_no_part_of_the_step(tmp_path: Path) -> None:
    """cleanrl: what the network says is read and acted on, and every turn trains on what was seen so far."""
    source = """
        import torch


        def train(actor, critic, optimizer, env, seen, begin):
            actor.cuda()
            critic.cuda()
            state = env.reset()
            for turn in range(1000):
                with torch.no_grad():
                    action = actor(torch.tensor(state).cuda()).cpu().numpy()
                found, reward = env.step(action)
                seen.add(state, found, action, reward)
                state = found
                if turn > begin:
                    data = seen.sample(32)
                    values = critic(data.states)
                    loss = (values - data.rewards).pow(2).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    if turn % 2 == 0:
                        loss = -critic(actor(data.states)).mean()
                        loss.backward()
                        optimizer.step()
    """
    text, left = after(tmp_path, source)
    assert "env.step" not in block(text)
    assert "critic(data.states)" in block(text)
    assert not left


def test_times_of_a_sampler_stay_on_the_host(tmp_path: Path) -> None:
    """REPA: they were taken for a batch, moved to the device, and then waited for by the test of them."""
    source = """
        import torch


        @torch.no_grad()
        def sample(model, x, labels, scale, most):
            model.cuda().eval()
            x = x.cuda()
            times = torch.linspace(1, 0, 21)
            for turn, (now, then) in enumerate(zip(times[:-1], times[1:])):
                both = torch.cat([x, x]) if scale > 1 and now <= most else x
                drift = model(both, labels)
                x = x + (then - now) * drift
            return x
    """
    text, left = after(tmp_path, source)
    assert '.to("xla")' not in block(text)
    assert "x = x + (then - now) * drift" in block(text)
    assert not left


def test_so_do_times_that_are_put_together(tmp_path: Path) -> None:
    """REPA's second sampler: it also lost what follows the forward, and waited for each time."""
    source = """
        import torch


        @torch.no_grad()
        def sample(model, x, labels, scale, most):
            model.cuda().eval()
            x = x.cuda()
            times = torch.linspace(1.0, 0.04, 20, dtype=torch.float64)
            times = torch.cat([times, torch.tensor([0.0], dtype=torch.float64)])
            for turn, (now, then) in enumerate(zip(times[:-2], times[1:-1])):
                span = then - now
                both = torch.cat([x, x]) if scale > 1 and now <= most else x
                drift = model(both, labels)
                if scale > 1 and now <= most:
                    one, other = drift.chunk(2)
                    drift = other + scale * (one - other)
                x = x + drift * span
            return x
    """
    text, left = after(tmp_path, source)
    assert '.to("xla")' not in block(text)
    assert "x = x + drift * span" in block(text)
    assert not left


def test_an_actor_loop_s_step_ends_before_the_environment_s(tmp_path: Path) -> None:
    """cleanrl's PQN: the action was read in the step, for the moves of what the environment answers."""
    source = """
        import torch


        def roll(q_network, envs, turns, count):
            q_network.cuda()
            obs = torch.zeros(turns, 4).cuda()
            rewards = torch.zeros(turns).cuda()
            values = torch.zeros(turns).cuda()
            next_obs = torch.Tensor(envs.reset()).cuda()
            for turn in range(turns):
                obs[turn] = next_obs
                with torch.no_grad():
                    q_values = q_network(next_obs)
                    best = torch.argmax(q_values, dim=-1)
                    values[turn] = q_values[best]
                explore = torch.rand(1).cuda() < 0.1
                action = torch.where(explore, torch.zeros_like(best), best)
                next_obs, reward, over, infos = envs.step(action.cpu().numpy())
                rewards[turn] = torch.tensor(reward).cuda().view(-1)
                next_obs, over = torch.Tensor(next_obs).cuda(), torch.Tensor(over).cuda()
                if "episode" in infos:
                    print(infos["episode"])
            return obs, rewards, values
    """
    text, left = after(tmp_path, source)
    assert "action = torch.where" in block(text)
    assert "envs.step" not in block(text)
    assert all("`turn` changes at each step" in message for message in left)


def test_what_an_agent_learns_of_its_rollouts_is_in_the_step(tmp_path: Path) -> None:
    """cleanrl's PPO: the rollouts are on the device before the loop, and the step began below the forward."""
    source = """
        import torch
        import torch.nn.functional as F


        def learn(agent, rollouts, optimizer, order, epochs):
            agent.cuda()
            obs, returns = rollouts[0].cuda(), rollouts[1].cuda()
            fractions = []
            for epoch in range(epochs):
                for start in range(0, 64, 32):
                    some = order[start : start + 32]
                    values = agent.get_value(obs[some])
                    with torch.no_grad():
                        over = values > returns[some]
                        fractions += [over.float().mean().item()]
                    loss = F.mse_loss(values, returns[some])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            return fractions
    """
    text, left = after(tmp_path, source)
    assert "values = agent.get_value(obs[some])" in block(text)
    assert "item()" not in block(text)
    assert not left


def test_an_update_in_a_function_that_also_schedules_is_in_the_step_of_its_forward(
    tmp_path: Path,
) -> None:
    """LoRA's GPT-2: the step was in the function, and the forward above its call in none."""
    source = """
        import torch


        def update(loss, optimizer, schedule, is_last):
            loss.backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
            if schedule is not None:
                schedule.step()


        def train(model, optimizer, schedule, loader, meter, every):
            model.cuda()
            for turn, data in enumerate(loader):
                tokens = data["input"].cuda()
                loss = model(tokens).mean()
                is_last = turn % every == 0
                meter.update(loss.item())
                update(loss / every, optimizer, schedule, is_last)
    """
    text, left = after(tmp_path, source)
    assert "loss = model(tokens).mean()" in block(text)
    assert "update(loss / every" in block(text)
    assert "item()" not in block(text)
    assert not left


def test_an_evaluation_loop_around_another_has_no_step_of_its_own(tmp_path: Path) -> None:
    """CoCLR: ten crops, each over the whole loader."""
    script = """
        import torch


        @torch.no_grad()
        def crops(model, data, kept):
            model.cuda().eval()
            for crop in range(10):
                loader = torch.utils.data.DataLoader(data(crop))
                with torch.no_grad():
                    for x, y in loader:
                        x = x.cuda()
                        out = model(x)
                        kept.append(out.softmax(-1))
        """
    text, _ = after(tmp_path, script)
    assert text.count(STEP) == 1
    assert f"                {STEP}\n                    x = x.to" in text


def test_an_average_of_the_weights_makes_no_evaluation_of_the_loop_around(tmp_path: Path) -> None:
    """An average kept by hand, in `no_grad` within the training loop: the loop over epochs got a step too."""
    script = """
        import torch
        from copy import deepcopy


        def train(net, optimizer):
            net.cuda()
            average = deepcopy(net)
            for epoch in range(2):
                for _ in range(5):
                    x = torch.randn(8, 8).cuda()
                    loss = net(x).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    with torch.no_grad():
                        for a, b in zip(average.parameters(), net.parameters()):
                            a.mul_(0.99).add_(b, alpha=0.01)
        """
    text, _ = after(tmp_path, script)
    assert text.count(STEP) == 1
    assert f"            {STEP}\n                x = torch" in text


CLIPPED = """
    import torch
    from torch import nn


    class Update:
        def __call__(self, loss, optimizer, parameters, {clip}):
            loss.backward()
            if {test}:
                {clipping}
            optimizer.step()


    def train(model, optimizer, loader):
        model.cuda()
        update = Update()
        for x in loader:
            loss = model(x.cuda()).mean()
            update(loss, optimizer, model.parameters(), 5.0)
            optimizer.zero_grad()
    """


@pytest.mark.parametrize(
    ("clip", "test", "clipping"),
    [
        ("clip=None", "clip", "nn.utils.clip_grad_norm_(parameters, clip)"),
        ("max_norm", "max_norm > 0", "nn.utils.clip_grad_norm_(parameters, max_norm)"),
        ("limit=0.0", "limit", "nn.utils.clip_grad_value_(parameters, limit)"),
        ("limit: float", "limit", "[p.grad.clamp_(-limit, limit) for p in parameters]"),
    ],
)
def test_gradients_are_clipped_before_the_update(
    tmp_path: Path, clip: str, test: str, clipping: str
) -> None:
    """`if clip:` was taken for a read of a tensor: the clipping went below the step, behind the update."""
    text, left = after(tmp_path, CLIPPED.format(clip=clip, test=test, clipping=clipping))
    assert text.index("backward()") < text.index(clipping) < text.index("optimizer.step()")
    assert f"        {STEP}\n            loss = model" in text
    assert not left


def test_what_clips_stays_though_it_reads(tmp_path: Path) -> None:
    source = CLIPPED.format(
        clip="threshold", test="threshold", clipping="nn.utils.clip_grad_norm_(parameters, 1.0)"
    )
    text, left = after(tmp_path, source)
    assert text.index("clip_grad_norm_") < text.index("optimizer.step()")
    assert any("each step waits for it" in one for one in left)


def test_a_key_that_is_compared_with_a_text_is_no_read(tmp_path: Path) -> None:
    """CenterNet: the move of a batch in parts was taken for a read, the forward left out of the step."""
    source = """
        import torch


        def run_epoch(model, optimizer, loader, phase, device):
            model.cuda()
            for batch in loader:
                for k in batch:
                    if k != "meta":
                        batch[k] = batch[k].to(device="cuda", non_blocking=True)
                output, loss = model(batch)
                loss = loss.mean()
                if phase == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        """
    text, left = after(tmp_path, source)
    assert "output, loss = model(batch)" in block(text)
    assert "backward()" in block(text)
    assert not left


@pytest.mark.parametrize(
    "told",
    ["subnet.reset()", "candidate.eval()", "candidate.cuda(args.gpu)", "candidate.to('cuda')"],
)
def test_a_forward_whose_result_nobody_uses_gets_its_step(tmp_path: Path, told: str) -> None:
    """The batch norms of a subnet are calibrated: the graph would grow over all turns of the loop."""
    name = told.split(".")[0]
    source = f"""
        import torch

        @torch.no_grad()
        def calibrate(configs, supernet, loader, args):
            for config in configs:
                {name} = supernet.get_active_subnet(config)
                {told}
                for number, (images, _) in enumerate(loader):
                    if number >= 64:
                        break
                    images = images.cuda(args.gpu, non_blocking=True)
                    {name}(images)  # forward only
    """
    text, left = after(tmp_path, source)
    assert not left
    inside = [line.split()[0] for line in block(text).splitlines()]
    assert inside == ["images", f"{name}(images)"]


def test_a_function_that_is_called_is_no_model(tmp_path: Path) -> None:
    source = """
        import torch

        def plot(images):
            torch.save(images, "images.pt")

        @torch.no_grad()
        def show(loader):
            for images, _ in loader:
                images = images.cuda()
                plot(images)
    """
    text, _ = after(tmp_path, source)
    assert STEP not in text


def test_what_another_file_moves_and_this_one_calls_eval_of_is_a_model(tmp_path: Path) -> None:
    source = """
        import torch

        @torch.no_grad()
        def score(candidate, loader, meter, device):
            candidate.eval()
            for images, labels in loader:
                images, labels = images.to(device), labels.to(device)
                outputs = candidate(images)
                meter.update((outputs.argmax(1) == labels).sum().item())
    """
    main = """
        import torch
        from train import score

        device = torch.device("cuda")
        score(build().to(device), loader, meter, device)
    """
    text, _ = after(tmp_path, source, {"main.py": main})
    assert STEP in text


TIMED = """
    import time

    import torch


    def train(model, loader, optimizer, meter):
        start = time.time()
        for x, y in loader:
            loss = model(x.cuda(), y.cuda())
            loss.backward()
            optimizer.step()
            BETWEEN
            print(time.time() - start)
"""


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        ("torch.cuda.synchronize()", "xm.wait_device_ops()"),
        ("if meter: torch.cuda.synchronize()", "torch_xla.sync(wait=True)"),
        ("meter.update(loss.item()); torch.cuda.synchronize()", "torch_xla.sync(wait=True)"),
        ("meter.update(loss.item())\n            torch.cuda.synchronize()", ""),
        ("meter.update(loss)\n            torch.cuda.synchronize()", "torch_xla.sync(wait=True)"),
    ],
)
def test_a_wait_below_a_step_starts_no_graph(tmp_path: Path, between: str, expected: str) -> None:
    text, _ = after(tmp_path, TIMED.replace("BETWEEN", between))
    waits = [one for one in ("xm.wait_device_ops()", "torch_xla.sync(wait=True)") if one in text]
    assert waits == [expected] * bool(expected)
    assert "synchronize" not in text


@pytest.mark.parametrize(
    "loop", ["for x, y in loader:", "while (x := next(loader, None)) is not None:"]
)
def test_so_does_a_wait_below_the_step_of_an_evaluation(tmp_path: Path, loop: str) -> None:
    source = f"""
        import time

        import torch

        @torch.no_grad()
        def validate(net, loader, meter, timer):
            net.cuda().eval()
            end = time.time()
            {loop}
                x = x.cuda()
                value = net(x).mean()

                torch.cuda.synchronize()
                meter.update(value.item())
                timer.update(time.time() - end)
                end = time.time()
    """
    text, _ = after(tmp_path, source)
    assert STEP in text
    assert "xm.wait_device_ops()\n" in text
    assert "sync(wait=True)" not in text


def test_no_step_goes_around_the_move_of_an_evaluation_alone(tmp_path: Path) -> None:
    source = """
        import torch


        @torch.no_grad()
        def evaluate(model, loader, criterion, device):
            model.to(device)
            model.eval()
            total, right = 0.0, torch.zeros(1, device=device)
            for images, target in loader:
                images, target = images.cuda(), target.cuda()
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    output = model(images)
                    total += criterion(output, target).item()
                right += (output.argmax(1) == target).sum()
            return total, right.item()
    """
    text, left = after(tmp_path, source)
    assert "torch_xla.step()" not in text
    assert any(READ_IN_FORWARD.partition(":")[2] in message for message in left)


LEARNER = """
    import torch


    class Learner:
        def __init__(self, model, optimizer):
            self.model, self.optimizer, self.turn = model.cuda(), optimizer, 0

        def update(self, loss):
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            {rest}

        def learn(self, x, y):
            out = self.model(x.cuda())
            loss = torch.nn.functional.mse_loss(out, y.cuda())
            self.update(loss)

        def train(self, loader):
            for x, y in loader:
                self.learn(x, y)
"""


@pytest.mark.parametrize(
    "rest", ["torch.save(self.model.state_dict(), 'last.pt')", "print(loss.item())"]
)
def test_forward_that_stays_above_the_block_is_reported(tmp_path: Path, rest: str) -> None:
    _, left = after(tmp_path, LEARNER.format(rest=rest))
    assert FORWARD_ABOVE.format("self.update(loss)") in left


def test_function_that_only_trains_is_in_the_block_with_the_forward(tmp_path: Path) -> None:
    text, left = after(tmp_path, LEARNER.format(rest="self.turn += 1"))
    assert "self.learn(x, y)" in block(text)
    assert not left


BRANCHES = """
    import torch
    from torch import nn


    def train(model, loader, optimizer, kind, marks):
        model.cuda()
        for x, y in loader:
            x, y = x.cuda(), y.cuda()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                if marks:
                    marks.begin()
                {inside}
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(text)
"""


@pytest.mark.parametrize(
    "inside",
    [
        'if kind == "plain":\n    loss = model(x).mean()\n    text = f"{loss.item():.3f}"\n'
        "else:\n    loss = (model(x) - y).abs().mean()\n    text = str(loss.item())",
        'for part in (x, y):\n    loss = model(part).mean()\n    text = f"{loss.item():.3f}"',
    ],
)
def test_a_forward_in_a_branch_that_reads_too(tmp_path: Path, inside: str) -> None:
    """The forward in the branch is a part of the step, and its reads are reported."""
    indented = inside.replace("\n", "\n" + " " * 16)
    text, findings = after(tmp_path, BRANCHES.replace("{inside}", indented))
    assert "model(" in block(text)
    assert "loss.backward()" in block(text)
    assert any(READS_INSIDE in one for one in findings)


def test_reads_at_the_end_of_a_region_leave_the_step(tmp_path: Path) -> None:
    inside = "loss = model(x).mean()\n                text = str(loss.item())"
    text, _ = after(tmp_path, BRANCHES.replace("{inside}", inside))
    assert "model(" in block(text)
    assert ".item()" not in block(text)


OWN_DERIVATIVE = """
    import torch
    from torch import nn


    class Swoosh(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                y = nn.functional.softplus(x - 4) - 0.08 * x
                y.backward(gradient=torch.ones_like(y))
                ctx.save_for_backward(x.grad)
                return y.detach()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0]


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])

        def forward(self, x):
            for layer in self.layers:
                x = Swoosh.apply(layer(x))
            return x


    def train(loader):
        model = Net().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in loader:
            loss = model(x.cuda()).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_backward_pass_of_an_autograd_function_is_no_part_of_the_loop(tmp_path: Path) -> None:
    text, findings = after(tmp_path, OWN_DERIVATIVE)
    assert "model(" in block(text)
    assert "optimizer.step()" in block(text)
    assert not findings


@pytest.mark.parametrize(
    "forward",
    [
        # Nothing shows that these are on the device, except for what autocast is, and for the backward pass.
        """with torch.autocast("cuda", dtype=torch.bfloat16):
            losses = criterion(encode(fetch(turn)))
        shown = torch.stack([value.cuda() for value in losses.values()])
        total = losses.get("loss") + 0 * shown.sum()""",
        """losses = criterion(encode(fetch(turn)))
        total = losses["loss"]""",
        """batch = fetch(turn)
        total = torch.nn.functional.mse_loss(encode(batch), criterion(batch))""",
    ],
)
def test_a_forward_of_unknown_functions_belongs_to_the_step(tmp_path: Path, forward: str) -> None:
    source = f"""
import torch
from models import criterion, encode, fetch


def fit(optimizer):
    for turn in range(100):
        rate = adjust(turn)
        {forward}
        total.backward()
        optimizer.step()
        optimizer.zero_grad()


fit(torch.optim.SGD(torch.nn.Linear(1, 1).cuda().parameters(), 0.1))
"""
    text, _ = after(tmp_path, source)
    inside = block(text)
    assert "criterion(" in inside
    assert "encode(" in inside
    assert "adjust(" not in inside


def test_code_that_a_known_forward_follows_stays_above(tmp_path: Path) -> None:
    source = """
import torch
from data import fetch


def fit(net, optimizer):
    for turn in range(100):
        batch = fetch(turn)
        names = describe(batch)
        loss = net(batch.cuda()).mean()
        loss.backward()
        optimizer.step()


net = torch.nn.Linear(1, 1).cuda()
fit(net, torch.optim.SGD(net.parameters(), 0.1))
"""
    text, _ = after(tmp_path, source)
    assert block(text).split("\n")[0].strip() == 'loss = net(batch.to("xla")).mean()'
