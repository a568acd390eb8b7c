"""Shell lines of a notebook, and those of them that use CUDA or start processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from migrate.syntax.notebook.magics import SHELLS
from migrate.syntax.notebook.text import Notebook

SHELL = re.compile(r"\s*!|\s*%(?:env|set_env|sx|system|run)\b|[ \t]*[\w., ]+=[ \t]*!")
SHELL_CELL = re.compile(r"\s*%%([^\s]+)")
# What no target has.
_CUDA_ONLY = {
    re.compile(
        r"^\s*!?\s*(?:deepspeed|horovodrun)\b"
    ): "has no TPU backend: start the rewritten script itself",
    re.compile(
        r"\bnvidia-smi\b|\bnvcc\b|\bnvidia-cuda\b"
    ): "there is no GPU on a TPU host: `tpu-info`",
    re.compile(r"\bCUDA_VISIBLE_DEVICES\b"): "CUDA_VISIBLE_DEVICES has no effect on a TPU",
}
_CUDA_WHEELS = re.compile(
    r"\bpip3? install\b.*(?:whl/cu\d|\bapex\b|flash[-_]attn|xformers|bitsandbytes|deepspeed)"
)
ADVICE = {
    re.compile(r"\btorchrun\b|torch\.distributed\.(?:launch|run)\b|\baccelerate launch\b"): (
        "on a TPU the rewritten script starts its replicas itself: `python SCRIPT`"
    ),
    **_CUDA_ONLY,
    _CUDA_WHEELS: "installs what needs CUDA: on a TPU, `pip install torch_xla[tpu]`",
}
ADVICE_ON_TORCH_TPU = {
    re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:launch|run)\b"): (
        "torch_tpu needs its environment before: eval $(python -m torch.tpu.distributed | "
        "sed 's/^/export /')"
    ),
    re.compile(r"\baccelerate launch\b"): "is not known to start ranks of torch_tpu: torchrun",
    re.compile(r"\bpip3? install\b.*torch_xla"): "cannot share an environment with torch_tpu",
    **_CUDA_ONLY,
    _CUDA_WHEELS: "installs what needs CUDA: on a TPU, `pip install torch_tpu`",
}


def shell_advice(
    notebook: Notebook, advices: Mapping[re.Pattern[str], str] = ADVICE
) -> Iterator[tuple[int, int, str]]:
    """Yield the cell, the line and the advice for each shell line that does not work on a TPU.

    Args:
        notebook: the parsed notebook.
        advices: the advice for the commands that each expression matches.
    """
    for cell in notebook.cells:
        whole = SHELL_CELL.match(cell.source)
        in_shell = whole is not None and whole[1] in SHELLS
        if whole is not None and not in_shell and whole[1] in ("writefile", "file"):
            continue
        for number, line in enumerate(cell.source.split("\n"), 1):
            if line.lstrip().startswith("#") or not (in_shell or SHELL.match(line)):
                continue
            for what, advice in advices.items():
                if match := what.search(line):
                    yield cell.number, number, f"{match[0].strip(' !')}: {advice}"
                    break
