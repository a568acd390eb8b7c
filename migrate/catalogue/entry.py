"""Entry of the catalogue for one name of a library."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OnXla(StrEnum):
    """Behavior of a name on XLA; the value is the wording in a finding."""

    WORKS = "works"
    CALLED = "works in the calls that its rule reads"  # other uses are reported
    NOTHING = "does nothing on XLA"  # and nothing waits for it: harmless without a GPU
    RAISES = "raises on XLA"
    WRONG = "is something else on XLA"  # without a message


@dataclass(frozen=True)
class CatalogueEntry:
    """Behavior of a name on XLA, and its replacement.

    Args:
        name: its qualified name; unless it works, all names below it are included.
        on_xla: its behavior.
        native: the replacement with torch_xla, or other advice.
        portable: the replacement with shims, if it differs.
        does: its behavior, if the wording of `on_xla` does not describe it.
        code: the hazard of `migrate check` that reports it.
        rule: the rule of `migrate rewrite` about it.
        leaves_script: whether it runs the training, so that a script that uses it stays unchanged.
        stands: whether most scripts use it correctly, so that it only needs a review.
        becomes: the expression that takes its place, if the rule of the entry edits every use. With `()` the
            arguments of the call go, with `(…)` the first one stays, otherwise all stay.
        stands_for: the first of the names that are one thing to a user, such as those of a framework, which
            is reported once. Empty: the name itself.
    """

    name: str
    on_xla: OnXla
    native: str = ""
    portable: str = ""
    does: str = ""
    code: str = ""
    rule: str = ""
    stands: bool = False
    leaves_script: bool = False
    becomes: str = ""
    stands_for: str = ""

    def says(self, portable: bool = False) -> str:
        """Return the behavior of the name and the advice, for a message."""
        does = self.does or self.on_xla.value
        todo = (portable and self.portable) or self.native
        return f"{does}: {todo}" if todo else does


@dataclass(frozen=True)
class Family:
    """Names of one module with similar entries; a call makes the entries.

    Args:
        module, on_xla, code, rule, does, stands: as in an entry; `does` is the default for the call.
    """

    module: str
    on_xla: OnXla
    code: str = ""
    rule: str = ""
    does: str = ""
    stands: bool = False

    def __call__(
        self, names: str, native: str = "", portable: str = "", does: str = ""
    ) -> tuple[CatalogueEntry, ...]:
        """Return an entry for each of `names`, which follow the module after a dot."""
        does = does or self.does
        first = names.split()[0]
        return tuple(
            CatalogueEntry(
                f"{self.module}.{name}",
                self.on_xla,
                native,
                portable,
                does,
                self.code,
                self.rule,
                self.stands,
                stands_for=f"{self.module}.{first}",
            )
            for name in names.split()
        )


# The modules in which torch keeps names that it offers elsewhere: scripts write both.
HOMES = {
    "apex.parallel.LARC": "apex.parallel",
    "apex.parallel.distributed": "apex.parallel",
    "torch.amp.autocast_mode": "torch.amp",
    "torch.amp.grad_scaler": "torch.amp",
    "torch.cuda.amp.autocast_mode": "torch.cuda.amp",
    "torch.cuda.amp.grad_scaler": "torch.cuda.amp",
    "torch.cuda.graphs": "torch.cuda",
    "torch.cuda.memory": "torch.cuda",
    "torch.cuda.random": "torch.cuda",
    "torch.cuda.streams": "torch.cuda",
    "torch.distributed.distributed_c10d": "torch.distributed",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "torch.distributed.fsdp",
    "torch.multiprocessing.spawn": "torch.multiprocessing",
    "torch.nn.modules.batchnorm": "torch.nn",
    "torch.nn.parallel.data_parallel": "torch.nn.parallel",
    "torch.nn.parallel.distributed": "torch.nn.parallel",
    "torch.nn.utils.clip_grad": "torch.nn.utils",
    "torch.random": "torch",
    "torch.utils.data.dataloader": "torch.utils.data",
    "torch.utils.data.distributed": "torch.utils.data",
    "torch_xla.amp.grad_scaler": "torch_xla.amp",
}


def public(name: str) -> str:
    """Return the catalogue's name for `name`: `torch.cuda.seed` for `torch.cuda.random.seed`."""
    for home, offers in HOMES.items():
        if name.startswith(f"{home}."):
            return f"{offers}{name.removeprefix(home)}"
    return name


def names(*entries: CatalogueEntry) -> frozenset[str]:
    """Return the names of `entries`, and their names in the defining modules."""
    public_ones = {entry.name for entry in entries}
    at_home = {
        f"{home}.{name.rpartition('.')[2]}"
        for name in public_ones
        for home, offers in HOMES.items()
        if name.rpartition(".")[0] == offers
    }
    return frozenset(public_ones | at_home)


def launchers(module: str, names: str) -> tuple[CatalogueEntry, ...]:
    """Return entries of the functions of `module` that take what `torch.multiprocessing.spawn` takes."""
    return Family(module, OnXla.CALLED, rule="mp-spawn")(
        names,
        "replicas are started by torch_xla.launch",
        "replicas are started by shims.launch",
        does="starts processes that are no replicas",
    )
