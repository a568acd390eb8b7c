"""Saves that move out of a test of the rank, and those that cannot."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.rewrite.rules.saving.save_calls import ON_SOME_WAYS
from migrate.syntax.source import parse

HEAD = "import os\n\nimport torch\nimport torch.distributed as dist\n\nDISTRIBUTED = dist.is_available()\n"


def run(script: str) -> Rewrite:
    text = HEAD + "\n\n" + textwrap.dedent(script).strip() + "\n"
    return rewrite_source(parse(text.encode(), Path("script.py")))


def after(script: str) -> str:
    """What is left of the script, without its imports."""
    return run(script).data.decode().split("\n\n\n", 1)[1]


def says(script: str) -> str:
    done = run(script)
    assert "xm.save" not in done.data.decode()
    return "\n".join(note.message for note in done.findings if note.rule == "save")


def test_one_save_a_host_stays_one_a_host() -> None:
    done = after(
        "def f(m, local_rank):\n    if local_rank == 0:\n        torch.save(m.state_dict(), 'a')"
    )
    assert done == "def f(m, local_rank):\n    xm.save(m.state_dict(), 'a')\n".replace('"', "'")


def test_a_file_of_each_replica() -> None:
    done = after("def f(m):\n    torch.save(m.state_dict(), f'{dist.get_rank()}.pt')")
    assert "xm.save(m.state_dict(), f'{dist.get_rank()}.pt', master_only=False)" in done


@pytest.mark.parametrize(
    ("before", "path", "own"),
    [
        ("def name(n):\n    return Path('a') / f'{n}.pt'", "name(dist.get_rank())", True),
        ("def name():\n    return f'a/{dist.get_rank()}.pt'", "name()", True),
        (
            "def name():\n    text = 'a'\n    text += f'{dist.get_rank()}'\n    return text",
            "name()",
            True,
        ),
        ("from names import name", "name('a', 3)", False),
        ("def name(n):\n    n += f'{dist.get_rank()}'\n    return n", "name('a')", True),
        ("def name(n):\n    return os.path.join(n, 'm.pt')", "name('a')", False),
        (
            "class A:\n    def __init__(self, r):\n        self.path = f'{dist.get_rank()}'",
            "'a'",
            False,
        ),
    ],
)
def test_the_rank_is_followed_through_functions(before: str, path: str, own: bool) -> None:
    done = after(
        f"import os\nfrom pathlib import Path\n{before}\ndef f(m):\n    torch.save(m.state_dict(), {path})"
    )
    last = done.splitlines()[-1].strip()
    how = "master_only=False" if own else "global_master=True"
    assert last == f"xm.save(m.state_dict(), {path}, {how})"


def test_the_rank_is_followed_through_an_attribute() -> None:
    done = after(
        """
        class Saver:
            def __init__(self, folder, rank):
                self.mine = f"{folder}/{rank}.pt"
                self.path = f"{folder}/all.pt"

            def save(self, state):
                torch.save(state, self.mine)
                torch.save(state, self.path)
        """
    )
    assert "xm.save(state, self.mine, master_only=False)" in done
    assert "xm.save(state, self.path, global_master=True)" in done


def test_the_rank_is_followed_to_the_path() -> None:
    """Swin: one name for two paths, of which one is every replica's own."""
    done = after(
        """
        def f(m, folder, moe):
            rank = dist.get_rank()
            state = m.state_dict()
            if moe:
                suffix = f".rank{rank}"
                path = os.path.join(folder, "last.pth" + suffix)
                print(path)
                torch.save(state, path)
            else:
                if rank == 0:
                    path = os.path.join(folder, "last.pth")
                    torch.save(state, path)


        def g(m, folder):
            keep(m, f"{folder}/{dist.get_rank()}.pt")


        def keep(m, path):
            torch.save(m.state_dict(), path)
        """
    )
    assert done.count("master_only=False") == 2
    assert "        print(path)\n        xm.save(state, path, master_only=False)\n" in done
    assert "        xm.save(state, path, global_master=True)\n" in done
    assert "xm.save(m.state_dict(), path, master_only=False)" in done


def test_what_a_call_elsewhere_makes_of_the_rank_is_reported() -> None:
    script = """
        from names import prepare


        def f(m):
            torch.save(m.state_dict(), prepare("a", dist.get_rank()))
        """
    assert ON_SOME_WAYS in says(script)


def test_what_a_condition_asks_is_not_in_the_path() -> None:
    done = after(
        """
        def f(m):
            folder = prepare(m)
            name = "a" if dist.get_rank() == 0 else "b"
            torch.save(m.state_dict(), f"{folder}/{name}.pt")
        """
    )
    assert "global_master=True" in done


def test_a_path_that_is_not_always_a_replicas_own_is_reported() -> None:
    assert "the rank in it on some ways only" in says(
        """
        def f(m, path, moe):
            if moe:
                path = f"{path}.rank{dist.get_rank()}"
            else:
                path = path + ".last"
            torch.save(m.state_dict(), path)
        """
    )


def test_keywords_and_star_arguments() -> None:
    assert "xm.save(data=x, file_or_path=p, global_master=True)" in after(
        "def f(x, p):\n    torch.save(obj=x, f=p, _use_new_zipfile_serialization=False)"
    )
    assert after(
        "def save(*args, **kwargs):\n    if dist.get_rank() == 0:\n        torch.save(*args, **kwargs)"
    ) == ("def save(*args, **kwargs):\n    xm.save(*args, **kwargs, global_master=True)\n")


def test_what_follows_the_save_stays_with_the_first_replica() -> None:
    script = """
        class Trainer:
            def _save(self, epoch):
                state = self.model.state_dict()
                torch.save(state, self.path)
                print("saved")
                os.remove("old")

            def train(self):
                for epoch in range(3):
                    if self.gpu_id == 0 and epoch % self.save_every == 0:
                        self._save(epoch)
    """
    done = after(script)
    assert "        xm.save(state, self.path, global_master=True)\n" in done
    assert (
        "        if xm.is_master_ordinal(local=False):\n"
        '            print("saved")\n'
        '            os.remove("old")\n'
    ) in done
    assert (
        "            if epoch % self.save_every == 0:\n                self._save(epoch)\n" in done
    )


def test_the_rest_of_the_branch_keeps_its_test_and_comments() -> None:
    script = """
        def f(model, rank, path):
            # checkpoint
            if rank == 0:
                os.makedirs(path)
                # what is kept
                state = {"model": model.state_dict()}
                torch.save(state, path)  # here

                # the latest one, too
    """
    assert after(script) == textwrap.dedent(
        """\
        def f(model, rank, path):
            # checkpoint
            if rank == 0:
                os.makedirs(path)
            # what is kept
            state = {"model": model.state_dict()}
            xm.save(state, path, global_master=True)  # here
            # the latest one, too
        """
    )


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("if rank == 0:\n    pass\nelse:\n    torch.save(x, 'p')", "on all ranks"),
        ("if rank == 1:\n    torch.save(x, 'p')", "rank == 1"),
        ("x.cuda()\ntorch.save(x, open('p', 'wb'))", "open file"),
        ("def f(m):\n    m.train()\n    torch.save(m, 'p')", "state_dict"),
        ("def f(m):\n    m.train()\n    torch.save({'net': m, 'step': 1}, 'p')", "state_dict"),
        ("def f(m):\n    torch.save(m, 'p', pickle_protocol=4)", "pickle"),
        ("def f(x):\n    if rank > 1:\n        return\n    torch.save(x, 'p')", "on all ranks"),
        (
            "def f(x):\n    if sharded and rank > 0:\n        return\n    torch.save(x, 'p')",
            "on all ranks",
        ),
        ("rank == 0 and torch.save(x, 'p')", "a test of the rank lets pass"),
        ("saved = torch.save(x, 'p') if rank == 0 else None", "a test of the rank lets pass"),
        ("match rank:\n    case 0:\n        torch.save(x, 'p')", "a test of the rank lets pass"),
        (
            "def only(f):\n    def inner():\n        if dist.get_rank() == 0:\n            f()\n"
            "    return inner\n\n\n@only\ndef save():\n    torch.save(x, 'p')\n\n\nsave()",
            "runs on one replica only",
        ),
    ],
)
def test_reported(script: str, said: str) -> None:
    assert said in says(script)


@pytest.mark.parametrize(
    "branch",
    [
        "if acc > best:\n    torch.save(x, 'p')",
        "if acc > best:\n    best = acc\n    torch.save(x, 'p')\nelse:\n    torch.save(x, 'q')",
        "x = make()\ntorch.save(x, 'p')",
        "with timer():\n    torch.save(x, 'p')\n    torch.save(x, f'{epoch}.pt')",
        "log(1)\ntorch.save(x, 'last')\nif judge(x) > best:\n    torch.save(x, 'p')",
    ],
)
@pytest.mark.parametrize("test", ["rank == 0", "rank == 0 and loss < best"])
def test_what_the_first_replica_decides_alone_it_saves_alone(test: str, branch: str) -> None:
    script = (
        f"def f(x, rank, epoch, loss, best):\n    if {test}:\n{textwrap.indent(branch, ' ' * 8)}"
    )
    done = run(script)
    text = done.data.decode()
    expected = branch.replace("torch.save(", "xm.save(").replace("')", "', master_only=False)")
    expected = f"    torch_xla.sync()\n    if {test}:\n{textwrap.indent(expected, ' ' * 8)}"
    assert expected in text
    assert [note for note in done.findings if note.rule in ("save", "XLA301")] == []
    assert rewrite_source(parse(done.data, Path("script.py"))).data == done.data


@pytest.mark.parametrize(
    "test",
    ["rank != 0", "rank > 0", "rank", "not is_master()", "not rank == 0", "rank or x is None"],
)
def test_where_the_others_return_the_first_replica_saves_alone(test: str) -> None:
    function = (
        f"    if {test}:\n        return\n    tmp = 'p.tmp'\n    torch.save(x, tmp)\n"
        "    os.replace(tmp, 'p')\n"
    )
    done = run(f"def f(x, rank):\n{function}")
    saved = function.replace("torch.save(x, tmp)", "xm.save(x, tmp, master_only=False)")
    assert f"    torch_xla.sync()\n{saved}" in done.data.decode()
    assert [note for note in done.findings if note.rule in ("save", "XLA301")] == []
    assert rewrite_source(parse(done.data, Path("script.py"))).data == done.data


@pytest.mark.parametrize(
    ("made", "function", "call"),
    [
        ("", "def g(x):\n    kept = build(x)\n    torch.save(kept, 'p')", "g(1)"),
        ("", "def g(x):\n    torch.save(x, 'p')\n    return 1", "g(model)"),
        ("if rank == 0:\n    best = judge(x)", "def g(x):\n    torch.save([x, best], 'p')", "g(x)"),
        ("", "def g(x):\n    if x.best:\n        torch.save(x, 'p')", "for y in ys:\n        g(y)"),
    ],
)
def test_a_function_that_the_first_replica_calls_alone_saves_there(
    made: str, function: str, call: str
) -> None:
    script = f"x.cuda()\n{made}\n\n\n{function}\n\n\nif rank == 0:\n    {call}"
    done = run(script)
    text = done.data.decode()
    assert (
        function.replace("torch.save(", "xm.save(").replace("')", "', master_only=False)") in text
    )
    assert f"torch_xla.sync()\nif rank == 0:\n    {call}" in text
    assert [note for note in done.findings if note.rule in ("save", "XLA301")] == []


def test_a_function_that_not_only_the_first_replica_calls_is_reported() -> None:
    script = (
        "x.cuda()\n\n\ndef g(x):\n    if x.best:\n        torch.save(x, 'p')\n\n\n"
        "if rank == 0:\n    g(x)\nif rank == 1:\n    g(x)"
    )
    assert "torch_xla.sync()" not in after(script)
    assert "each decides by its own `x.best`" in says(script)


def test_a_comment_of_the_test_stays_with_it() -> None:
    script = (
        "def f(x, acc, best):\n    x.cuda()\n\n    # the best\n    if rank == 0 and acc > best:\n"
    )
    assert "\n\n    torch_xla.sync()\n    # the best\n    if rank == 0 and acc > best:\n" in after(
        f"{script}        torch.save(x, 'p')\n"
    )


@pytest.mark.parametrize(
    "outside", ["loss_of(x).item() > 1", "not os.path.exists(str(x.sum().item()))"]
)
def test_a_test_that_not_all_replicas_reach_keeps_its_save(outside: str) -> None:
    script = (
        "dist.init_process_group('nccl')\n\n\ndef f(x, model, acc, best):\n    x = x.cuda()\n"
        f"    if {outside}:\n        if rank == 0 and acc > best:\n            torch.save(x, 'p')"
    )
    assert "torch_xla.sync()" not in after(script)
    assert says(script)


def test_a_script_without_devices_is_only_told() -> None:
    data = b"import torch\n\n\ndef f(x):\n    torch.save(x, 'p')\n"
    done = rewrite_source(parse(data, Path("script.py")))
    assert not done.changed
    assert [note.rule for note in done.findings] == ["save"]


MAKES_FOLDER = """
    def f(model, rank, args):
        if rank == 0:
            os.makedirs(args.results)
            folder = f"{args.results}/{len(os.listdir(args.results))}"
        else:
            folder = None
        model.train()
"""


def of_writer(save: str) -> str:
    script = textwrap.dedent(MAKES_FOLDER) + textwrap.indent(textwrap.dedent(save), "    ")
    return after(script).partition("    model.train()\n")[2]


def test_a_path_that_only_the_first_replica_can_compute() -> None:
    """DiT: the folder is made, and named, below a test of the rank of its own."""
    for other in ("else:\n        folder = None\n", ""):
        script = """
            if rank == 0:
                state = {"model": model.state_dict()}
                path = os.path.join(folder, "last.pt")
                torch.save(state, path)
                print(path)
            """
        around = textwrap.dedent(MAKES_FOLDER).replace(
            "else:\n        folder = None\n", other
        ) + textwrap.indent(textwrap.dedent(script), "    ")
        assert after(around).partition("    model.train()\n\n")[2] == (
            '    state = {"model": model.state_dict()}\n'
            "    if rank == 0:\n"
            '        path = os.path.join(folder, "last.pt")\n'
            "    xm.save(state, path if rank == 0 else None, global_master=True)\n"
            "    if rank == 0:\n"
            "        print(path)\n"
        )


def test_what_all_replicas_can_compute_stays_as_it_is() -> None:
    done = of_writer(
        """
        if rank == 0:
            torch.save(model.state_dict(), "last.pt")
            torch.save(model.state_dict(), folder + "/last.pt")
        """
    )
    assert 'xm.save(model.state_dict(), "last.pt", global_master=True)' in done
    assert 'folder + "/last.pt" if rank == 0 else None, global_master=True)' in done
    both = "if rank == 0:\n    run = os.getcwd()\nelse:\n    run = '.'\n"
    done = after(both + "if rank == 0:\n    torch.save(x, run)")
    assert "xm.save(x, run, global_master=True)" in done


def test_an_argument_that_becomes_a_path_is_computed_by_the_first_replica() -> None:
    script = """
        class Trainer:
            def __init__(self, model, rank):
                self.model = model
                if rank == 0:
                    self.folder = tempfile.mkdtemp()

            def train(self, rank, epoch):
                if rank == 0:
                    self.save(epoch, self.folder)

            def save(self, epoch, folder):
                torch.save(self.model.state_dict(), f"{folder}/{epoch}.pt")
                print(folder)
    """
    done = after(script)
    assert "        self.save(epoch, self.folder if rank == 0 else None)\n" in done
    assert '        xm.save(self.model.state_dict(), f"{folder}/{epoch}.pt", global_master' in done
    assert "        if xm.is_master_ordinal(local=False):\n            print(folder)\n" in done


@pytest.mark.parametrize("path", ["run_dir", "self.run_dir"])
def test_a_function_that_saves_where_some_replicas_alone_have_the_folder(path: str) -> None:
    script = f"""
        class Trainer:
            def __init__(self, model, rank):
                self.model = model
                self.rank = rank
                if self.rank == 0:
                    self.run_dir = os.path.join("runs", "1")
                    os.makedirs(self.run_dir)

            def save(self, epoch):
                state = self.model.state_dict()
                path = os.path.join({path}, "last.pt")
                torch.save(state, path)
                torch.save(state, {path} + "/best.pt")
                torch.save(state, "here.pt")

            def train(self):
                if self.rank == 0:
                    self.save(1)
    """
    if path == "run_dir":
        script = textwrap.dedent(script) + "\n\nif rank == 0:\n    run_dir = tempfile.mkdtemp()\n"
    done = after(script)
    first = "if xm.is_master_ordinal(local=False) else None, global_master=True)"
    assert (
        "        state = self.model.state_dict()\n"
        "        if xm.is_master_ordinal(local=False):\n"
        f'            path = os.path.join({path}, "last.pt")\n'
        f"        xm.save(state, path {first}\n"
        f'        xm.save(state, {path} + "/best.pt" {first}\n'
        '        xm.save(state, "here.pt", global_master=True)\n'
    ) in done
    assert "    def train(self):\n        self.save(1)\n" in done


def test_what_the_launching_process_saves_stays_as_it_is() -> None:
    """The runtime must not start before the launch: torch_xla.launch raises."""
    done = after(
        """
        def build():
            words = {"a": 1}
            torch.save(words, "words.pt")
            return words


        def worker(rank, words):
            model = make().cuda(rank)
            if rank == 0:
                torch.save(model.state_dict(), "model.pt")


        if __name__ == "__main__":
            words = build()
            torch.save(words, "again.pt")
            torch.multiprocessing.spawn(worker, nprocs=torch.cuda.device_count(), args=(words,))
        """
    )
    assert 'torch.save(words, "words.pt")' in done
    assert 'torch.save(words, "again.pt")' in done
    assert 'xm.save(model.state_dict(), "model.pt", global_master=True)' in done


EVALUATED = """
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(make()).to("cuda")


    @torch.no_grad()
    def estimate_loss():
        model.eval()
        losses = [model(x).mean().item() for x in rows()]
        {more}
        return sum(losses)


    for step in range(10):
        if step % 5 == 0 and rank == 0:
            print(step)
            loss = estimate_loss()
            print(loss)
"""


def test_an_evaluation_of_the_wrapped_model_runs_on_all_replicas() -> None:
    """llama2.c: the forward of DDP meets the other replicas; what is printed stays with the first one."""
    done = run(EVALUATED.format(more="model.train()"))
    assert done.data.decode().endswith(
        "    if step % 5 == 0:\n"
        "        if rank == 0:\n"
        "            print(step)\n"
        "        loss = estimate_loss()\n"
        "        if rank == 0:\n"
        "            print(loss)\n"
    )
    assert "XLA304" not in {note.rule for note in done.findings}


def test_an_evaluation_of_rows_that_only_one_replica_has_is_reported() -> None:
    rows = "if rank == 0:\n    data = open('rows').read()\n\n\ndef rows():\n    return data\n\n\n"
    done = run(rows + textwrap.dedent(EVALUATED.format(more="model.train()")))
    assert b"and rank == 0:\n        print(step)\n        loss = estimate_loss()" in done.data
    assert "XLA304" in {note.rule for note in done.findings}


@pytest.mark.parametrize("more", ["print(losses)", "dist.barrier()", "torch.save(losses, 'l')"])
def test_an_evaluation_that_does_more_is_reported(more: str) -> None:
    done = run(EVALUATED.format(more=more))
    assert b"and rank == 0:\n        print(step)\n        loss = estimate_loss()" in done.data
    assert "XLA304" in {note.rule for note in done.findings}


@pytest.mark.parametrize(
    ("put", "is_of_host"),
    [
        ("x['model'] = x['ema']", True),
        ("x['epoch'] = -1", True),
        ("x['model'] = model.state_dict()", False),
        ("x.update(model=model.state_dict())", False),
    ],
)
def test_a_checkpoint_that_was_loaded_on_the_host_is_saved_as_it_is(
    put: str, is_of_host: bool
) -> None:
    """YOLO's strip_optimizer: all replicas had to call it."""
    done = after(
        "def strip(path, model):\n    model.cuda()\n"
        "    x = torch_load(path, map_location=torch.device('cpu'))\n"
        f"    {put}\n    torch.save(x, path)"
    )
    assert ("torch.save(x, path)" in done) == is_of_host


def test_a_rank_that_is_added_on_some_ways_is_reported() -> None:
    script = """
        def f(m, many):
            path = "a"
            if many:
                path += f"{dist.get_rank()}"
            torch.save(m.state_dict(), path)
        """
    assert ON_SOME_WAYS in says(script)


@pytest.mark.parametrize(
    "opened",
    [
        "with open(os.path.join(folder, name), 'wb') as f:",
        "with self.paths.open(os.path.join(folder, name), 'wb') as f:",
        "with (folder / name).open('wb') as f:",
        "with open(mode='wb', file=f'{folder}/{name}') as f:",
        "f = open(f'{folder}/{name}', 'wb')\nif f:",
    ],
)
@pytest.mark.parametrize(
    "rank", ["dist.get_rank()", "rank_in_words()", 'os.environ["RANK"]', "self.rank"]
)
def test_an_open_file_of_each_replica_is_saved_by_each(opened: str, rank: str) -> None:
    body = textwrap.indent(
        f"name = f'x.{{{rank}}}.pt'\n{opened}\n    torch.save(model.state_dict(), f)", "        "
    )
    told = says(
        "def rank_in_words():\n    return f'rank_{dist.get_rank()}'\n\n\n"
        "class Saver:\n    def __init__(self):\n        self.rank = dist.get_rank()\n\n"
        f"    def save(self, model, folder):\n{body}"
    )
    assert "xm.save(obj, path, master_only=False)" in told
    assert "global_master" not in told


def test_an_open_file_that_one_replica_writes_is_saved_by_one() -> None:
    told = says(
        "def save(model, epoch):\n    with open(f'{epoch}.pt', 'wb') as f:\n"
        "        torch.save(model.state_dict(), f)"
    )
    assert "xm.save(obj, path, global_master=True)" in told


def test_an_open_file_with_the_rank_on_some_ways_is_told_both() -> None:
    told = says(
        "def save(model, sharded):\n    if sharded:\n"
        "        name = f'{dist.get_rank()}.pt'\n    else:\n        name = 'x.pt'\n"
        "    with open(name, 'wb') as f:\n        torch.save(model.state_dict(), f)"
    )
    assert "where one replica writes" in told
    assert "master_only=False" in told


@pytest.mark.parametrize(
    "saved",
    ["torch.save(model, {path})", "torch.save(model.state_dict(), {path}, pickle_protocol=4)"],
)
def test_what_cannot_be_saved_as_it_is_keeps_a_file_for_each_replica(saved: str) -> None:
    line = saved.format(path="f'{dist.get_rank()}.pt'")
    told = says(f"model = torch.nn.Linear(2, 2).cuda()\n{line}")
    assert "master_only=False" in told
    assert "global_master" not in told


def test_an_import_in_the_function_runs_on_all_replicas() -> None:
    script = """
        def store(model, folder, small):
            import shutil

            os.makedirs(folder)
            if small:
                shutil.copy2(folder, "latest")
            torch.save(model.state_dict(), folder)


        if dist.get_rank() == 0:
            store(model, "out", False)
    """
    done = run(script)
    assert "def store(model, folder, small):\n    import shutil\n" in done.data.decode()
    assert "    xm.save(model.state_dict(), folder, global_master=True)\n" in done.data.decode()
    assert [finding for finding in done.findings if finding.rule == "save"] == []
