"""The number of processes: taken out where it can be, reported where the script goes on using it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite, rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse

SCRIPT = """
import torch
import torch.multiprocessing as mp
import torch.distributed as dist

{before}


def worker({parameters}):
    {body}


if __name__ == "__main__":
    {main}
"""


def run(parameters: str, body: str, main: str, before: str = "") -> Rewrite:
    def indented(text: str) -> str:
        return text.replace("\n", "\n    ")

    filled = SCRIPT.format(
        parameters=parameters,
        body=indented(body),
        main=indented(main),
        before=textwrap.dedent(before),
    )
    done = rewrite_source(parse(filled.encode(), Path("script.py")))
    compile(done.data, "script.py", "exec")
    return done


COUNTED = "n = torch.cuda.device_count()\n"


@pytest.mark.parametrize(
    ("parameters", "body", "main", "signature", "launch"),
    [
        ("rank, n", "print(n)", COUNTED + "mp.spawn(worker, (n,), n)", "rank", "(worker)"),
        (
            "rank, a, n, *, b=1",
            "print(a, n)",
            COUNTED + "mp.spawn(worker, args=(3, n), nprocs=n)",
            "rank, a, *, b=1",
            "(worker, args=(3,))",
        ),
        (
            "rank, n: int, a",
            "print(a, n)",
            COUNTED + "mp.spawn(worker, args=[n, 3], nprocs=n, join=True, daemon=False)",
            "rank, a",
            "(worker, args=[3])",
        ),
        (
            "rank, n, a",
            "print(a, n)",
            "mp.spawn(nprocs=torch.cuda.device_count(), fn=worker, args=(torch.cuda.device_count(), 3))",
            "rank, a",
            "(fn=worker, args=(3,))",
        ),
    ],
)
def test_asked_by_the_worker(
    parameters: str, body: str, main: str, signature: str, launch: str
) -> None:
    done = run(parameters, body, main)
    text = done.data.decode()
    assert f"def worker({signature}):\n    n = xr.world_size()\n" in text
    assert f"    torch_xla.launch{launch}\n" in text
    assert "device_count" not in text
    assert done.findings == ()


def test_a_use_in_a_nested_function_counts() -> None:
    body = "def show():\n    print(n)\nshow()"
    done = run("rank, n", body, COUNTED + "mp.spawn(worker, args=(n,), nprocs=n)")
    assert "n = xr.world_size()" in done.data.decode()


def test_no_statement_where_only_the_rendezvous_used_it() -> None:
    body = 'dist.init_process_group("nccl", rank=rank, world_size=n)'
    text = run("rank, n", body, COUNTED + "mp.spawn(worker, args=(n,), nprocs=n)").data.decode()
    assert "world_size()" not in text
    assert "torch_xla.runtime" not in text
    assert 'def worker(rank):\n    dist.init_process_group("xla"' in text


def test_a_worker_that_is_also_called_keeps_its_signature() -> None:
    main = COUNTED + "mp.spawn(worker, args=(n,), nprocs=n)\nworker(0, 1)"
    done = run("rank, n", "print(n)", main)
    assert "def worker(rank, n):" in done.data.decode()
    assert "torch_xla.launch(worker, args=(n,))" in done.data.decode()
    assert any("the worker receives `n`" in note.message for note in done.findings)


@pytest.mark.parametrize(
    ("parameters", "body", "main", "before"),
    [
        ("rank", "sample(N)", "mp.spawn(worker, nprocs=N)", "N = 2"),
        ("rank, n", "sample(n)", "mp.spawn(worker, args=(2,), nprocs=2)", ""),
        ("rank, args", "sample(args.n)", "mp.spawn(worker, args=(args,), nprocs=args.n)", ""),
        ("rank", "pass", COUNTED + 'mp.spawn(worker, nprocs=n)\nprint(f"{n} GPUs")', ""),
    ],
)
def test_other_uses_are_reported(parameters: str, body: str, main: str, before: str) -> None:
    done = run(parameters, body, main, before)
    assert any("torch_xla.runtime.world_size()" in note.message for note in done.findings)


def test_rpc_is_left_alone() -> None:
    body = "torch.distributed.rpc.init_rpc('worker', rank=rank)"
    before = "import os\nos.environ['MASTER_ADDR'] = 'localhost'"
    done = run("rank", body, "mp.spawn(worker, nprocs=2)", before)
    assert not done.changed
    assert {note.rule for note in done.findings} == {"mp-spawn", "rendezvous-address", "unhandled"}


COUNTING = """\
if args.gpus:
    n = torch.cuda.device_count()
    if n < 2 and args.loud:
        warnings.warn("one GPU")
else:
    n = 1
assert n > 0, f"{n} GPUs"
mp.spawn(worker, args=(args,), nprocs=n)"""


def test_code_that_only_counts_goes() -> None:
    done = run("rank, args", "print(args)", COUNTING, "import warnings\nargs = 1")
    text = done.data.decode()
    assert 'if __name__ == "__main__":\n    torch_xla.launch(worker, args=(args,))\n' in text
    assert not done.findings


def test_code_that_does_more_than_to_count_stays() -> None:
    main = COUNTING.replace("mp.spawn", "train(n)\nmp.spawn")
    done = run("rank, args", "print(args)", main, "args = 1")
    assert "    n = torch.cuda.device_count()\n" in done.data.decode()
    assert any("torch_xla.runtime" in note.message for note in done.findings)


def test_a_rank_that_the_worker_sets_anew_goes() -> None:
    main = (
        "if nodes:\n    args.rank = int(nodes) * args.n\n    print(nodes)\n"
        "else:\n    args.rank = 0\n"
        "args.n = torch.cuda.device_count()\nmp.spawn(worker, (args,), args.n)"
    )
    done = run("gpu, opt", "opt.rank += gpu\nprint(opt.rank)", main, "nodes = args = 1")
    text = done.data.decode()
    assert "args.rank" not in text
    assert "    if nodes:\n        print(nodes)\n    torch_xla.launch(worker, (args,))\n" in text
    assert "def worker(gpu, opt):\n    opt.rank = gpu\n" in text


def test_a_rank_that_something_reads_before_stays() -> None:
    main = "args.rank = 3\nprint(args.rank)\nmp.spawn(worker, (args,), 2)"
    done = run("gpu, opt", "opt.rank += gpu\nprint(opt.rank)", main, "args = 1")
    assert "args.rank = 3" in done.data.decode()


def test_the_comment_of_a_count_goes_with_it() -> None:
    main = (
        "# asked for\n\n# a world_size over all nodes\nargs.world_size = n * args.nodes\n"
        "# the start\nmp.spawn(worker, args=(args,), nprocs=n)"
    )
    done = run("rank, args", "print(args.world_size)", "n = args.n\n" + main, "args = 1")
    text = done.data.decode()
    assert "# asked for\n" in text
    assert "over all nodes" not in text
    assert "    # the start\n    torch_xla.launch" in text


@pytest.mark.parametrize("own", [False, True])
def test_a_worker_that_seeds_itself_is_not_seeded_again(own: bool) -> None:
    body = "torch.manual_seed(opt.seed)\nprint(1)" if own else "print(1)"
    main = "torch.manual_seed(args.seed)\nmp.spawn(worker, (args,), 2)"
    text = run("gpu, opt", body, main, "args = 1").data.decode()
    seed = "opt.seed" if own else "opt.seed + xr.global_ordinal()"
    assert text.count("torch_xla.manual_seed") == 1
    assert f"torch_xla.manual_seed({seed})\n" in text
    assert text.count("torch.manual_seed(args.seed)") == 1


LAUNCHER = """
def launch(fn, n):
    mp.spawn(fn, (n, 1), nprocs=n)
"""


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        (COUNTED + "launch(worker, n)", "launch(worker)"),
        ("launch(n=2, fn=worker)", "launch(fn=worker)"),
        ("launch(worker, torch.cuda.device_count())", "launch(worker)"),
    ],
)
def test_a_function_that_launches_what_it_is_given(main: str, expected: str) -> None:
    text = run("rank, n, a", "print(n, a)", main, LAUNCHER).data.decode()
    assert "def launch(fn):\n    torch_xla.launch(fn, (1,))\n" in text
    assert "def worker(rank, a):\n    n = xr.world_size()\n" in text
    assert text.endswith(f'if __name__ == "__main__":\n    {expected}\n')


@pytest.mark.parametrize(
    "main",
    [
        COUNTED + "launch(worker, n // 2)",
        COUNTED + "launch(worker, n)\nn = n // 2\nlaunch(worker, n)",
        COUNTED + "launch(worker, n)\nworker(0, n, 1)",
        COUNTED + "launch(lambda rank, n, a: print(n), n)",
        COUNTED + "launch(worker, n)\nlater(launch)",
    ],
)
def test_a_function_that_launches_and_whose_callers_do_more_is_reported(main: str) -> None:
    done = run("rank, n, a", "print(n, a)", main, LAUNCHER)
    assert "def launch(fn, n):" in done.data.decode()
    assert any("not known before the launch" in note.message for note in done.findings)


def test_the_else_of_a_check_stays() -> None:
    main = COUNTED + (
        "if n < 2:\n    print(f'{n} GPUs')\nelse:\n    # all of them\n    launch(worker, n)\nprint(1)"
    )
    done = run("rank, n, a", "print(n, a)", main, LAUNCHER)
    expected = 'if __name__ == "__main__":\n    # all of them\n    launch(worker)\n    print(1)\n'
    assert done.data.decode().endswith(expected)
    main = COUNTED + "if n < 2:\n    print('one')\nelse:\n    mp.spawn(worker, (n,), n)"
    text = run("rank, n", "print(n)", main).data.decode()
    assert text.endswith('if __name__ == "__main__":\n    torch_xla.launch(worker)\n')


ONE_DEVICE = """
if {test}:
    mp.spawn(worker, nprocs=h.num_gpus, args=(h,))
else:
    worker(0, h)"""


def test_a_count_on_an_object_with_what_is_computed_of_it() -> None:
    """hifi-gan: left in the launching process, it is a division by zero."""
    main = (
        "h = make()\n"
        "if torch.cuda.is_available():\n"
        "    torch.cuda.manual_seed(h.seed)\n"
        "    h.num_gpus = torch.cuda.device_count()\n"
        "    h.batch_size = int(h.batch_size / h.num_gpus)\n"
        "    h.lr *= max(h.num_gpus, 1)\n"
        "    print('one has', h.batch_size)\n"
        "else:\n"
        "    pass"
    )
    body = (
        "torch.cuda.manual_seed(h.seed)\n"
        "if h.num_gpus > 1:\n"
        "    dist.init_process_group('nccl', rank=rank, world_size=h.num_gpus)\n"
        "net = torch.nn.Linear(2, h.batch_size).cuda(rank)"
    )
    done = run("rank, h", body, main + ONE_DEVICE.format(test="h.num_gpus > 1"))
    assert done.findings == ()
    text = done.data.decode()
    assert text.partition("def worker(rank, h):\n")[2].startswith(
        "    h.num_gpus = xr.world_size()\n"
        "    h.batch_size = int(h.batch_size / h.num_gpus)\n"
        "    h.lr *= max(h.num_gpus, 1)\n"
        "    if rank == 0:\n"
        "        print('one has', h.batch_size)\n"
        "    torch_xla.manual_seed(h.seed)\n"
        "    if h.num_gpus > 1:\n"
        "        dist.init_process_group('xla', init_method='xla://')\n"
    )
    assert text.endswith("    h = make()\n    torch_xla.launch(worker, args=(h,))\n")


def test_a_count_in_a_name_with_what_is_computed_of_it() -> None:
    main = (
        "args = make()\n"
        "n = torch.cuda.device_count()\n"
        "args.batch_size //= n\n"
        "if n >= 2:\n"
        "    mp.spawn(worker, nprocs=n, args=(args,))\n"
        "else:\n"
        "    worker(0, args)"
    )
    done = run("gpu, options", "print(options.batch_size)", main)
    assert done.findings == ()
    text = done.data.decode()
    assert "def worker(gpu, options):\n    options.batch_size //= xr.world_size()\n" in text
    assert text.endswith("    args = make()\n    torch_xla.launch(worker, args=(args,))\n")


@pytest.mark.parametrize(
    "computed",
    [
        "h.batch_size = share(h.batch_size, h.num_gpus)",
        "if h.small:\n    h.batch_size = h.batch_size // h.num_gpus",
        "h.batch_size = h.batch_size // h.num_gpus\nlog.info(h.batch_size)",
        "h.batch_size = h.batch_size // h.num_gpus\nloader = make(h.batch_size)",
    ],
)
def test_what_the_worker_cannot_compute_is_reported(computed: str) -> None:
    main = f"h = make()\nh.num_gpus = torch.cuda.device_count()\n{computed}"
    done = run("rank, h", "print(h.batch_size)", main + ONE_DEVICE.format(test="h.num_gpus > 1"))
    assert computed.replace("\n", "\n    ") in done.data.decode()
    assert any("own number of processes" in note.message for note in done.findings)


def test_another_way_for_one_device_stays() -> None:
    main = "h = make()\nh.num_gpus = torch.cuda.device_count()" + ONE_DEVICE.format(
        test="h.num_gpus > 1"
    ).replace("worker(0, h)", "print('no device')")
    assert "print('no device')" in run("rank, h", "print(h)", main).data.decode()


def kept(body: str, main: str, before: str = "") -> tuple[str, Rewrite]:
    done = run("rank, cfg", body, main, before)
    return done.data.decode(), done


IN_A_DICTIONARY = """\
cfg = {"batch": 16}
cfg["num_gpus"] = torch.cuda.device_count()
mp.spawn(worker, nprocs=cfg["num_gpus"], args=(cfg,))"""


@pytest.mark.parametrize(
    "read", ['cfg["num_gpus"]', 'cfg.get("num_gpus", 1)', 'cfg["num_gpus"] if cfg else 1']
)
def test_a_count_in_a_dictionary_is_asked_by_the_worker(read: str) -> None:
    text, done = kept(f"print({read})", IN_A_DICTIONARY)
    assert 'def worker(rank, cfg):\n    cfg["num_gpus"] = xr.world_size()\n' in text
    assert '    cfg = {"batch": 16}\n    torch_xla.launch(worker, args=(cfg,))\n' in text
    assert done.findings == ()


def test_what_follows_from_a_count_in_a_dictionary_goes_to_the_worker() -> None:
    more = 'cfg["batch"] = cfg["batch"] // cfg["num_gpus"]\nprint(cfg["batch"])\nmp.spawn'
    text, done = kept('print(cfg["batch"])', IN_A_DICTIONARY.replace("mp.spawn", more))
    assert (
        '    cfg["num_gpus"] = xr.world_size()\n'
        '    cfg["batch"] = cfg["batch"] // cfg["num_gpus"]\n'
        '    if rank == 0:\n        print(cfg["batch"])\n'
    ) in text
    assert done.findings == ()


def test_the_rank_and_the_numbers_of_nodes_in_a_dictionary() -> None:
    main = """\
cfg = {"nodes": 2, "nr": 1}
cfg["train"]["gpus"] = torch.cuda.device_count()
cfg["world_size"] = cfg["train"]["gpus"] * cfg["nodes"]
mp.spawn(worker, nprocs=cfg["train"]["gpus"], args=(cfg,))"""
    body = 'cfg["rank"] = cfg["nr"] * cfg["train"]["gpus"] + rank\nprint(cfg["world_size"])'
    body += '\nprint(cfg["train"]["gpus"])'
    text, done = kept(body, main)
    assert (
        '    cfg["train"]["gpus"] = xr.local_device_count()\n'
        '    cfg["world_size"] = xr.world_size()\n'
        '    cfg["rank"] = rank\n'
    ) in text
    assert done.findings == ()


OWN_NUMBER = "the script's own number"


def test_a_count_of_a_dictionary_literal_is_reported() -> None:
    text, done = kept(
        'print(cfg["n"])', 'cfg = {"n": 2}\nmp.spawn(worker, nprocs=cfg["n"], args=(cfg,))'
    )
    assert 'print(cfg["n"])' in text
    assert any(f'`cfg["n"]` is {OWN_NUMBER}' in note.message for note in done.findings)


KEPT = """\
args.world_size = torch.cuda.device_count()
mp.spawn(worker, nprocs=args.world_size, args=(args,))"""


@pytest.mark.parametrize(
    ("before", "body"),
    [
        ("args = 1\ndef batches(options):\n    return 8 // options.world_size", "batches(args)"),
        (
            "args = 1\nclass Trainer:\n    def __init__(self, options):\n        self.options = options\n"
            "        print(self.options.world_size)",
            "Trainer(args)",
        ),
        ("from data import make_loader\nargs = 1", "make_loader(args)"),
        ("import data\nargs = 1", "data.make_loader(args)"),
    ],
)
def test_a_count_that_other_functions_read_is_asked_by_the_worker(before: str, body: str) -> None:
    done = run("rank, args", body, KEPT, before)
    assert "def worker(rank, args):\n    args.world_size = xr.world_size()\n" in done.data.decode()


@pytest.mark.parametrize("body", ["print(args)", "torch.save(args, 'args.pt')", "worker2(args)"])
def test_a_count_that_nothing_reads_goes(body: str) -> None:
    done = run("rank, args", body, KEPT, "args = 1\ndef worker2(args):\n    print(args.epochs)")
    assert "world_size" not in done.data.decode()


DISTRIBUTED = """
args.ngpus = torch.cuda.device_count()
args.world_size = args.ngpus * args.nodes
args.distributed = args.world_size > 1
if args.distributed:
    mp.spawn(worker, nprocs=args.ngpus, args=(args,))
else:
    {otherwise}worker(0, args)
"""


def test_whether_there_are_several_may_be_kept_on_the_arguments() -> None:
    """`args.distributed` went to the worker, and the `if` above the launch went on reading it."""
    done = run("rank, args", "print(args.distributed)", DISTRIBUTED.format(otherwise=""))
    assert "if args" not in done.data.decode()
    assert "args.distributed = args.world_size > 1" in done.data.decode().partition("__main__")[0]
    assert not done.findings


def test_whether_there_are_several_stays_where_the_launching_function_asks() -> None:
    otherwise = "print('alone')\n    "
    done = run("rank, args", "print(args.distributed)", DISTRIBUTED.format(otherwise=otherwise))
    assert "if args.distributed" in done.data.decode()
    assert "args.distributed = args.world_size > 1" in done.data.decode().partition("__main__")[2]
    assert any("device_count" in note.message or "ngpus" in note.message for note in done.findings)


def test_a_number_in_a_dictionary_that_is_written_out_is_asked_of_the_runtime() -> None:
    main = (
        'options = {"batch": 64, "gpus": torch.cuda.device_count()}\n'
        'mp.spawn(worker, nprocs=options["gpus"], args=(options,))'
    )
    done = run("rank, options", 'print(options["batch"] // options["gpus"])', main)
    assert 'options = {"batch": 64}' in done.data.decode()
    assert 'options["gpus"] = xr.world_size()' in done.data.decode()
    assert not done.findings


def test_two_numbers_in_a_dictionary_go_at_once() -> None:
    main = (
        "n = torch.cuda.device_count()\n"
        'options = {"gpus": n, "batch": 64, "world_size": n}\n'
        "mp.spawn(worker, nprocs=n, args=(options,))"
    )
    done = run("rank, options", 'print(options["world_size"] + options["gpus"])', main)
    assert 'options = {"batch": 64}' in done.data.decode()
    assert 'options["gpus"] = xr.world_size()' in done.data.decode()
    assert 'options["world_size"] = xr.world_size()' in done.data.decode()


def test_an_option_that_is_no_longer_checked_is_told(tmp_path: Path) -> None:
    """The group would not have met with another number; a learning rate by it is another one now."""
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse\n\nimport torch\nimport torch.distributed as dist\n\n\ndef main():\n"
        "    parser = argparse.ArgumentParser()\n"
        '    parser.add_argument("--world_size", default=4, type=int)\n'
        "    args = parser.parse_args()\n"
        '    dist.init_process_group("nccl", world_size=args.world_size)\n'
        "    print(0.1 * args.world_size / 4, torch.ones(1).cuda())\n\n\n"
        'if __name__ == "__main__":\n    main()\n'
    )
    (found,) = [n for n in rewrite(script).findings if n.rule == "init-process-group"]
    assert found.message.startswith("`args.world_size` had to be the number of processes")
    script.write_text(script.read_text().replace("args.world_size / 4, ", ""))
    (unread,) = [n for n in rewrite(script).findings if n.rule == "init-process-group"]
    assert unread.message.startswith("--world_size has no effect in the rewritten file")


LISTED = "devices = [int(n) for n in input().split(',')]\n"


@pytest.mark.parametrize(
    ("parameters", "body", "main"),
    [
        ("rank, gpus", "print(len(gpus) > 1)", "mp.spawn(worker, (devices,), len(devices))"),
        (
            "rank, gpus",
            "print(len(gpus) > 1)",
            "count = len(devices)\nmp.spawn(worker, args=(devices,), nprocs=count)",
        ),
        (
            "rank, options",
            "print(len(options.gpus) > 1)",
            "args = make(devices)\nmp.spawn(worker, nprocs=len(args.gpus), args=(args,))",
        ),
    ],
)
def test_the_length_of_the_list_of_devices_is_asked_of_the_runtime(
    parameters: str, body: str, main: str
) -> None:
    """`--devices 0` on four chips: no DDP, another learning rate, and each replica for itself."""
    done = run(parameters, body, LISTED + main)
    assert "print(xr.world_size() > 1)" in done.data.decode()
    assert done.findings == ()


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        ("device = devices[rank]\nprint(device)", True),
        ("print(devices)", False),
        ("devices = [1]\nprint(len(devices))", False),
        ('dist.init_process_group("nccl", rank=rank, world_size=len(devices))', False),
    ],
)
def test_an_item_for_each_process_is_reported(body: str, reported: bool) -> None:
    main = LISTED + "mp.spawn(worker, (devices,), len(devices))"
    done = run("rank, devices", body, main)
    told = [note.message for note in done.findings]
    assert any("has an item for each process" in message for message in told) == reported
