"""Options of a rewrite. Rules read them as `context.options`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from migrate.check.config import Config

Target = Literal["torch_xla"]
Style = Literal["native", "portable"]
TARGETS: tuple[Target, ...] = get_args(Target)
STYLES: tuple[Style, ...] = get_args(Style)


@dataclass(frozen=True)
class RewriteOptions:
    """Options of a rewrite.

    Args:
        target: the package that drives the TPU.
        style: `native` writes calls of the target's own interface; `portable` writes calls of `shims`,
            so that one source runs on CUDA, CPU and TPU.
        config: the configuration, which selects findings and sets their severity.
        defer_reads: whether logged values are read from the device once for each print instead of once for
            each step.
    """

    target: Target = "torch_xla"
    style: Style = "native"
    defer_reads: bool = False
    config: Config = field(default_factory=Config)


DEFAULT = RewriteOptions()
