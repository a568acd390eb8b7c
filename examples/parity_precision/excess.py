"""The top token flips with `xla_allow_excess_precision`: a bfloat16 model on XLA, the flag on and off.

python examples/parity_precision/excess.py

No emulation: torch_xla runs the model on the CPU in two processes, as the flag is read once. Then the same
program goes through the TPU's compiler, which lists the roundings that the flag leaves out (libtpu, ahead of
time; no TPU is needed).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def run() -> None:
    """One process: decode, and write tokens and margins."""
    import torch
    import torch_xla
    from language_model import Logits, decode, prompts

    torch.set_num_threads(1)
    model = Logits().bfloat16().to(torch_xla.device())
    found = decode(model, prompts(), "xla")
    print(json.dumps([found.tokens.tolist(), found.margins.tolist()]))


def roundings() -> None:
    """One process: what the TPU's compiler leaves out."""
    from language_model import Logits, prompts

    from migrate.compiler.program import program_of_torch
    from migrate.parity.tasks.excess import find_excess

    excess = find_excess(program_of_torch(Logits().bfloat16(), [prompts()]))
    if excess.undetermined:
        print(f"undetermined: {excess.undetermined}")
        return
    print(f"{sum(one.count for one in excess.roundings)} roundings left out by {excess.compiler}")
    for one in excess.roundings[:8]:
        print(f"  {str(one).replace(str(HERE) + '/', '')}")


def child(task: str, flags: str = "") -> str:
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "XLA_FLAGS": flags}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, task],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def main() -> int:
    import torch
    from language_model import Decoded, first_differences

    runs = {}
    for flag in ("true", "false"):
        text = child("run", f"--xla_allow_excess_precision={flag}").splitlines()[-1]
        tokens, margins = json.loads(text)
        runs[flag] = Decoded(torch.tensor(tokens), torch.tensor(margins))
    flips = first_differences(runs["true"], runs["false"])
    print(f"{len(flips)} of {len(runs['true'].tokens)} rows part:")
    for row, step in flips:
        on, off = (int(runs[flag].tokens[row, step]) for flag in ("true", "false"))
        margin = float(runs["false"].margins[row, step])
        print(f"  row {row}, token {step}: {off} as written, {on} with excess; margin {margin:.1e}")
    print(child("roundings"))
    return 0 if flips else 1


if __name__ == "__main__":
    tasks = {"run": run, "roundings": roundings}
    sys.exit(tasks[sys.argv[1]]() if len(sys.argv) > 1 else main())
