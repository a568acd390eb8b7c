"""The public scripts, and what makes each a matter of a minute on two cores: arguments and data."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# What stands in for what is not here (see `site/`), in the words of the results' table.
DATA = "data set: random images"
RESNET = "torchvision's resnet50: one block a stage, narrow"


@dataclass(frozen=True)
class Script:
    """One script of a public repository and how it is run.

    Attributes:
        repository: OWNER+NAME, the folder of its checkout.
        path: the script in it.
        args: `{data}` is a folder of images, `{port}` a free port, `{out}` an empty folder.
        stands_in: what the harness offers in place of what the script would find elsewhere.
        prepare: makes files that the script looks for in its repository.
        start: for a script that can start its ranks in several ways (`python -m shims --start`).
        folder: where it is run; empty: beside the script.
        small_resnet: offer a smaller `torchvision.models.resnet50`.
        args_on_xla: further arguments there.
        args_to_fit: further arguments of `migrate fit`, where eight replicas need more data than two.
        torchrun: whether the rewritten script still reads torchrun's variables.
        args_to_prove: further arguments, for both sides, where the two are compared.
        project: the folder that is rewritten as a whole, where the script's local modules hold
            constructs of GPUs too; empty: the script alone.
        optimized: let XLA optimize, which compiles longer, for a script whose batches, which no argument
            sets, are so large that computing is most of its time.
        samples: how many images torchvision's own data sets have.
        workers: of each DataLoader, at most; None: as many as the script asks for.
        devices: how many GPUs a script (of hydra) counts that does not start with one; 0: those there are.
        ranks: how many of them a proof runs.
    """

    repository: str
    path: str
    args: str = ""
    stands_in: str = ""
    prepare: Callable[[Path], None] | None = None
    start: str = ""
    folder: str = ""
    small_resnet: bool = False
    samples: int = 32
    workers: int | None = None
    devices: int = 0
    optimized: bool = False
    args_on_xla: str = ""
    args_to_fit: str = ""
    torchrun: bool = False
    args_to_prove: str = ""
    project: str = ""
    ranks: int = 2

    @property
    def name(self) -> str:
        """The repository as GitHub writes it, and the script."""
        return f"{self.repository.replace('+', '/')} {self.path}"


def images(folder: Path, each: int = 8) -> None:
    """Make a folder of random JPEG files as ImageFolder wants it: 2 classes, `each` images of each."""
    from PIL import Image

    draw = random.Random(0)
    for split in ("train", "val"):
        for label in ("cat", "dog"):
            for number in range(each):
                path = folder / split / label / f"{label}_{number}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.frombytes("RGB", (72, 72), draw.randbytes(72 * 72 * 3)).save(path)


def _tokens(repository: Path) -> None:
    """Write random tokens where nanoGPT looks for its characters."""
    draw = random.Random(0)
    folder = repository / "data" / "shakespeare_char"
    for name in ("train.bin", "val.bin"):
        tokens = [draw.randrange(65) for _ in range(4096)]
        (folder / name).write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))


def _text(repository: Path) -> None:
    draw = random.Random(0)
    text = "".join(draw.choice("abcdefgh \n") for _ in range(240))
    (repository / "text.txt").write_text(text)


def smaller(*edits: tuple[str, str, str]) -> Callable[[Path], None]:
    """Return a function that makes a script small by edits: a file, a text in it, and its replacement."""

    def prepare(repository: Path) -> None:
        for name, old, new in edits:
            path = repository / name
            text = path.read_text()
            if old not in text:
                raise SystemExit(f"{name}: {old!r} is not in it")
            path.write_text(text.replace(old, new))

    return prepare


def _initialized(script: str) -> Callable[[Path], None]:
    """Return a function that makes a script small and resets each layer, which the script leaves out.

    The script gets its model by `to_empty` and resets the outermost layers alone: what the others begin with
    is what the memory held, often NaN, and differs from run to run. Earlier checkpoints go.
    """
    reset = "        model.reset_parameters()\n"
    layers = "        for layer in model.layers:\n            layer.reset_parameters()\n"
    prepared = smaller(
        (script, "n_layers=10", "n_layers=2"),
        (script, "batch_size = 32", "batch_size = 4"),
        (script, reset, reset + layers),
    )

    def prepare(repository: Path) -> None:
        prepared(repository)
        shutil.rmtree((repository / script).parent / "checkpoints", ignore_errors=True)

    return prepare


INITIALIZED = (
    "2 of 10 layers; batches of 4, not 32; layers reset after `to_empty`, as the script does not"
)

# Models sharded by FSDP2, for torch_tpu alone: torch_xla 2.9 has neither `fully_shard` nor DTensor.
SHARDED = (
    Script(
        "pytorch+examples",
        "distributed/FSDP2/example.py",
        stands_in=INITIALIZED,
        prepare=_initialized("distributed/FSDP2/example.py"),
        project="distributed/FSDP2",
    ),
    Script(
        "pytorch+examples",
        "distributed/tensor_parallelism/fsdp_tp_example.py",
        stands_in="a mesh of 1 by 2, not 2 by 2; a narrow model",
        prepare=smaller(
            (
                "distributed/tensor_parallelism/fsdp_tp_example.py",
                "_min_gpu_count = 4",
                "_min_gpu_count = 2",
            ),
            (
                "distributed/tensor_parallelism/fsdp_tp_example.py",
                "dim=256, n_layers=2, n_heads=16, vocab_size=32000",
                "dim=32, n_layers=2, n_heads=4, vocab_size=64",
            ),
            (
                "distributed/tensor_parallelism/fsdp_tp_example.py",
                "torch.randint(32000, (8, 256)",
                "torch.randint(64, (2, 16)",
            ),
        ),
        project="distributed/tensor_parallelism",
    ),
    Script(
        "LinB203+FSDP-Training",
        "train_fsdp.py",
        "--epochs 1 --size 4 --batch_size 2 --seq_len 16",
        stands_in="a narrow model",
        prepare=smaller(
            (
                "train_fsdp.py",
                "dim=4096, n_layers=2, n_heads=32, n_kv_heads=8, vocab_size=151936\n    )\n    # 7B",
                "dim=32, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=64\n    )\n    # 7B",
            ),
        ),
        project=".",
    ),
    Script(
        "jindajia+fsdp2",
        "train.py",
        stands_in=INITIALIZED,
        prepare=_initialized("train.py"),
        project=".",
    ),
    Script(
        "marked23+fsdp2-minimal-rocm",
        "train.py",
        stands_in=INITIALIZED,
        prepare=_initialized("train.py"),
        project=".",
    ),
)

SCRIPTS = (
    Script("pytorch+examples", "distributed/ddp-tutorial-series/multigpu.py", "1 5"),
    Script("pytorch+examples", "distributed/ddp-tutorial-series/multigpu_torchrun.py", "1 5"),
    Script("pytorch+examples", "distributed/ddp/example.py"),
    Script(
        "pytorch+examples",
        "distributed/minGPT-ddp/mingpt/main.py",
        "data_config.path={repository}/text.txt data_config.block_size=16 data_config.truncate=1 "
        "gpt_config.n_layer=2 gpt_config.n_head=2 gpt_config.n_embd=32 "
        "trainer_config.max_epochs=1 trainer_config.batch_size=16 trainer_config.save_every=1 "
        "trainer_config.data_loader_workers=0 trainer_config.snapshot_path={out}/snapshot.pt",
        stands_in="text: random letters",
        prepare=_text,
        # With its scaler it clips gradients that are still scaled, by 65536: on XLA nothing scales them.
        args_to_prove="trainer_config.use_amp=False",
        # Of so little text eight replicas make two steps of 16 each.
        args_to_fit="trainer_config.batch_size=2",
        project="distributed/minGPT-ddp/mingpt",
    ),
    Script(
        "pytorch+examples",
        "imagenet/main.py",
        "{data} -a resnet18 -b 8 -j 0 --epochs 1 --multiprocessing-distributed --world-size 1 "
        "--rank 0 --dist-url tcp://127.0.0.1:{port}",
        prepare=smaller(
            ("imagenet/main.py", "RandomResizedCrop(224", "RandomResizedCrop(64"),
            ("imagenet/main.py", "CenterCrop(224", "CenterCrop(64"),
        ),
        stands_in=f"{DATA}, cut to 64 by 64",
        start="spawn",
        # At its learning rate, made for batches of 256, rounding grows tenfold a step.
        args_to_prove="--lr 0.001",
    ),
    Script(
        "karpathy+nanoGPT",
        "train.py",
        "config/train_shakespeare_char.py --max_iters=4 --eval_interval=4 --eval_iters=1 "
        "--batch_size=4 --block_size=32 --n_layer=2 --n_head=2 --n_embd=32 --compile=False "
        "--gradient_accumulation_steps=4 --log_interval=1",
        # It divides its accumulation among the replicas.
        args_to_fit="--gradient_accumulation_steps=8",
        stands_in="data set: random tokens",
        prepare=_tokens,
        args_to_prove="--dtype=float32",
    ),
    Script(
        "facebookresearch+simsiam",
        "main_simsiam.py",
        "{data} -a resnet18 -b 4 -j 0 --epochs 1 --dim 64 --pred-dim 16 "
        "--multiprocessing-distributed --world-size 1 --rank 0 --dist-url tcp://127.0.0.1:{port}",
        prepare=smaller(("main_simsiam.py", "RandomResizedCrop(224", "RandomResizedCrop(64")),
        stands_in=f"{DATA}, cut to 64 by 64",
        start="spawn",
        args_on_xla="-b 8",
    ),
    Script(
        "facebookresearch+barlowtwins",
        "main.py",
        "{data} --workers 0 --epochs 8 --batch-size 8 --projector 32-32 --checkpoint-dir {out}",
        stands_in=f"{DATA}; {RESNET}",
        small_resnet=True,
        # On the CPU the scaler of float16 first looks for its scale; bfloat16 needs none.
        args_on_xla="--epochs 1",
    ),
    Script(
        "facebookresearch+dino",
        "main_dino.py",
        "--data_path {data}/train --arch vit_tiny --patch_size 32 --out_dim 64 "
        "--local_crops_number 1 --batch_size_per_gpu 4 --epochs 1 --warmup_epochs 0 "
        "--num_workers 0 --output_dir {out}",
        stands_in=f"{DATA}; torch.hub.list, which asks GitHub for names: an empty list",
        project=".",
        # Its own clipping reads two values for each parameter: two compilations each, first.
        args_on_xla="--clip_grad 0",
        # Stochastic depth draws on the device.
        args_to_prove="--drop_path_rate 0 --use_fp16 false",
    ),
    Script(
        "openai+guided-diffusion",
        "scripts/image_train.py",
        "--data_dir {data}/train --image_size 64 --num_channels 32 --num_res_blocks 1 "
        "--channel_mult 1,1 --attention_resolutions 32 --batch_size 2 "
        "--lr_anneal_steps 3 --log_interval 1",
        # A step that repeats, and the one after it.
        args_to_fit="--lr_anneal_steps 6",
        stands_in=f"{DATA}; mpi4py: ranks of the torchrun environment, objects over its store",
        folder=".",
        project=".",
    ),
    Script(
        "yangkky+distributed_tutorial",
        "src/mnist-distributed.py",
        "-g 2 --epochs 3",
        stands_in=f"{DATA}; apex, imported but not used",
    ),
    Script(
        "yangkky+distributed_tutorial",
        "src/mnist-mixed.py",
        "-g 2 --epochs 3",
        stands_in=f"{DATA}; apex: torch's DDP, and amp without mixed precision (float32)",
    ),
    Script(
        "The-AI-Summer+pytorch-ddp",
        "train_ddp.py",
        stands_in=f"{DATA}; {RESNET}; one worker for each DataLoader, not 16",
        small_resnet=True,
        # Its batches of 256 make two steps.
        samples=1024,
        workers=1,
        optimized=True,
    ),
    Script(
        "rentainhe+pytorch-distributed-training",
        "distributed.py",
        "--ip 127.0.0.1 --port {port} --batch_size 8 --epochs 1",
        # At its own rate the original differs from itself after two steps, when it rounds otherwise.
        args_to_prove="--lr 0.001",
        project=".",
        workers=0,
        stands_in=DATA,
    ),
)


def _example(path: str, args: str = "", **more: int) -> Script:
    return Script("examples", path, args, **more)  # type: ignore[arg-type]


# The examples that train, of this repository.
EXAMPLES = (
    _example("first_steps/train.py"),
    _example("ddp_toy/before.py"),
    _example("launch_environments/before.py"),
    _example("launch_local_rank/before.py"),
    _example("launch_module/before.py"),
    _example("launch_process/before.py"),
    _example("launch_spawn/before.py"),
    _example("launch_torchrun/before.py"),
    _example("portable/cuda_original.py", "--epochs 1"),
    _example("transformer/before.py", "--depth 1 --epochs 1"),
)


def _case(name: str, path: str = "train.py", args: str = "", **more: object) -> Script:
    return Script(f"cases+{name}", path, args, **more)  # type: ignore[arg-type]


def _saved(repository: Path) -> None:
    """Write the checkpoints that two of the single files load."""
    import torch

    torch.manual_seed(1)
    torch.save(torch.randn(10), repository / "table10.pt")
    torch.save(torch.nn.Linear(4, 2).state_dict(), repository / "w02.pt")


def _files(*names: str) -> tuple[Script, ...]:
    return tuple(_case("files", f"{name}.py") for name in names)


_MOVED = (
    "b_epoch",
    "c_callee_plain",
    "d_callee_chain",
    "n_o",
    "n_sgd",
    "n_optimiser",
    "n_optimizer_G",
)

# Small projects that once went wrong, in checkouts named `cases+NAME`; single files are in `cases+files`.
CASES = (
    _case("gpt_trainer", "main.py", "--max_iters 6 --grad_accum 4", project="."),
    _case("vit_small_data", args="--epochs 1 --samples 64", project="."),
    _case("seed_in_other_file", project="."),
    _case("gan_deadlock", "train_gan.py", "--niter 1 --n 32", project=".", start="spawn"),
    _case("own_shims", "train_gan.py", "--niter 1 --n 32", project=".", start="spawn"),
    _case("01_save_on_local_best"),
    _case("01_save_on_local_best", "shared_file.py"),
    _case("02c_gan_optimizers", ranks=1),
    _case("03_resume_all_states"),
    _case("05b_sampling_no_reads", ranks=1),
    _case("09b_unequal_shards_allreduce"),
    _case("12_sparse_embedding", ranks=1),
    _case("18_iterable_dataset_shard"),
    _case("25_oom_fit", args="--batch 2 --length 32", ranks=1),
    _case("unseeded_noise"),
    *_files("both_branches_reduce", "early_return", "flex_attention", "master_addr", "muon_owner"),
    *_files("module_level_seed", "nonfinite_guard", "orig_mod_keys", "pinned_empty"),
    _case("files", "hub_kernel.py", stands_in="kernels of the hub: torch's attention"),
    _case("files", "load_assign.py", prepare=_saved),
    _case("files", "load_to_device.py", prepare=_saved),
    *(_case("02b_move_in_loop", f"{name}.py", ranks=1) for name in _MOVED),
)
