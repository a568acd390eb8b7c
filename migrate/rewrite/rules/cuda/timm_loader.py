"""timm's loader of images, which sends the batches to CUDA by itself."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.catalogue.target import BOTH
from migrate.check.common import option
from migrate.reading.facts import Facts, facts_of
from migrate.reading.names.dead_branches import constant
from migrate.rewrite.rule import Rule, RuleFinding, Safety, left_alone, reported
from migrate.rewrite.workspace import Workspace

LOADERS = frozenset({"timm.data.create_loader", "timm.data.loader.create_loader"})
PREFETCHERS = frozenset({"timm.data.PrefetchLoader", "timm.data.loader.PrefetchLoader"})
MAKERS = LOADERS | PREFETCHERS
# The last argument that is at the same position in all versions: `is_training` and `std`.
SETTLED = {**dict.fromkeys(LOADERS, 4), **dict.fromkeys(PREFETCHERS, 3)}
ERASES = (
    "timm's prefetcher erases rectangles of random sizes (`re_prob`) on the device, where each size is a "
    "compilation, at every step: "
)


class TimmLoader(Rule):
    """Report a loader of timm's that sends the batches to CUDA, or erases parts of them on the device.

    **Why.** `timm.data.create_loader` puts a prefetcher around its DataLoader, unless `use_prefetcher=False`.
    That moves the batches to CUDA and normalizes them there; where there is no GPU, making it raises "Found
    no NVIDIA driver". With `re_prob` above 0 the prefetcher of a training loader also erases a rectangle of
    each image, whose size Python draws: on XLA every size is another graph, so that every step compiles.

    **Reported.** One that is given no `device=`. timm before 0.6 knows none; `use_prefetcher=False`
    (`--no-prefetcher` in timm's own scripts) is right for each version: the transform normalizes then, and
    the script's loop has to move the batches. Also one on the device whose `re_prob` is not known to be 0:
    with `use_prefetcher=False` the workers of the loader erase, on the host. A `PrefetchLoader` made by hand
    has no such switch: there the transform of the dataset erases.

    **Left alone.** A loader for the CPU, and one on the device that does not erase: `re_prob` is absent or 0,
    `no_aug=True`, or it is not for training.

    Source: timm 1.0.31 (measured: with `device=torch.device('xla')` the batches arrive on the device; with
    `re_prob=0.25` each step compiles).
    """

    name = "timm-loader"
    code = "XLA846"
    targets = BOTH
    safety = Safety.REPORT_ONLY
    nodes = (cst.Call,)
    words = spelled(MAKERS)
    examples = (
        reported(
            """
            from timm.data import create_loader


            def load(dataset, args):
                return create_loader(dataset, batch_size=8, use_prefetcher=args.prefetcher)
            """,
            "device=torch.device('xla')",
        ),
        reported(
            """
            import torch
            from timm.data import create_loader


            def load(dataset, args):
                device = torch.device("xla")
                return create_loader(
                    dataset, batch_size=8, is_training=True, re_prob=args.reprob, device=device
                )
            """,
            "use_prefetcher=False, with which the workers erase",
        ),
        left_alone(
            """
            import torch
            from timm.data import create_loader


            def load(dataset, device, args):
                yield create_loader(dataset, batch_size=8, use_prefetcher=False, re_prob=args.reprob)
                yield create_loader(dataset, batch_size=8, is_training=True, device=device)
                yield create_loader(
                    dataset, batch_size=8, is_training=True, re_prob=0.0, device=device
                )
                yield create_loader(
                    dataset, batch_size=8, is_training=False, re_prob=args.reprob, device=device
                )
                yield create_loader(
                    dataset, batch_size=8, re_prob=0.5, is_training=True, device=torch.device("cpu")
                )
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[RuleFinding]:
        """Yield the finding for one loader."""
        assert isinstance(node, cst.Call)
        maker = context.qualified_name(node.func)
        if maker not in MAKERS:
            return
        facts = facts_of(context)
        prefetches = maker in PREFETCHERS or _may_be_true("use_prefetcher", True, node, facts)
        where = option(node, "device", facts)
        if not prefetches or (where is not None and facts.values.is_surely_cpu(where)):
            return
        erases = _may_erase(node, maker, facts)
        on_cuda = where is None and not _is_hidden(node, facts)
        device = "shims.device()" if context.portable else "torch.device('xla')"
        plain = maker in PREFETCHERS
        off = (
            "leave it out, erase in the transform of the dataset"
            if plain
            else "use_prefetcher=False, with which the workers erase"
        )
        if erases:
            message = f"{ERASES}{off}, and move the batches in the loop; or re_prob=0"
            if on_cuda:
                message += f" with device={device}, as the batches go to CUDA by default"
            yield from self.report(node, message)
        elif on_cuda:
            other = (
                "leave it out: normalize in the transform of the dataset"
                if plain
                else "use_prefetcher=False"
            )
            yield from self.report(
                node,
                f"timm's prefetcher sends the batches to CUDA: device={device} (timm 0.6 and newer), or "
                f"{other} and move them in the loop",
            )


def _may_erase(call: cst.Call, maker: str, facts: Facts) -> bool:
    """Whether the prefetcher may erase: a probability that is not known to be 0, in a training loader."""
    if not _may_be_true("re_prob", False, call, facts, SETTLED[maker]):
        return False
    if maker in PREFETCHERS:
        return True
    no_aug = option(call, "no_aug", facts)
    if no_aug is not None and _is_true(no_aug, facts):
        return False
    positional = [arg for arg in call.args if arg.keyword is None]
    if len(positional) > 3 and not any(arg.star for arg in positional[:4]):
        known = constant(positional[3].value, facts.context)
        return known is None or bool(known[0])
    return _may_be_true("is_training", False, call, facts, SETTLED[maker])


def _may_be_true(
    name: str, default: bool, call: cst.Call, facts: Facts, settled: int | None = None
) -> bool:
    """Whether the option `name` may be true; `default` where the call does not set it.

    More than `settled` positional arguments may hold it.
    """
    value = option(call, name, facts)
    if value is not None:
        known = constant(value, facts.context)
        return known is None or bool(known[0])
    positional = [arg for arg in call.args if arg.keyword is None and arg.star != "**"]
    if settled is not None and len(positional) > settled:
        return True
    return default or _is_hidden(call, facts)


def _is_true(value: cst.BaseExpression, facts: Facts) -> bool:
    known = constant(value, facts.context)
    return known is not None and bool(known[0])


def _is_hidden(call: cst.Call, facts: Facts) -> bool:
    """Whether the call passes arguments that cannot be read: `*args`, `**options` of unknown content."""
    return any(arg.star and not _is_written(arg, facts) for arg in call.args)


def _is_written(arg: cst.Arg, facts: Facts) -> bool:
    """Whether `**options` is one dictionary that the script writes out."""
    holder = arg.value
    named = isinstance(holder, cst.Name | cst.Attribute)
    values = facts.values.given_to(holder) if named else [holder]  # type: ignore[arg-type]
    return len(values) == 1 and _is_dictionary(values[0])


def _is_dictionary(value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.Dict):
        return all(isinstance(element, cst.DictElement) for element in value.elements)
    called = isinstance(value, cst.Call) and isinstance(value.func, cst.Name)
    return (
        called
        and value.func.value == "dict"  # type: ignore[attr-defined]
        and not any(arg.star for arg in value.args)  # type: ignore[attr-defined]
    )
