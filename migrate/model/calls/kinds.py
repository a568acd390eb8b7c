"""The kinds of values that the analysis of calls knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from migrate.catalogue.words import FOLLOWED, MAKES_MODEL, SCHEDULER
from migrate.model.calls.kind import Kind
from migrate.model.calls.scopes import Class, Function, Scope


@dataclass(frozen=True)
class ClassInstance:
    """An object of a class of the project; not exact where it may be of a subclass."""

    of: Class
    exact: bool = True


@dataclass(frozen=True)
class ProjectModule:
    """A module or package of the project."""

    path: Path


@dataclass(frozen=True)
class External:
    """Something outside of the project, by its dotted name."""

    name: str


@dataclass(frozen=True)
class Result:
    """What calling something external gave: `Result('torch.optim.SGD')` is an optimizer."""

    name: str


# What a library makes; of its parts nothing is followed: `x = x.next` would have no end.
MODULE = Result("torch.nn.Module")
# A module whose forward takes its inputs to the GPU: DistributedDataParallel with device ids, also by the
# methods of Accelerate that wrap a model in it.
MOVES_INPUTS = Result("torch.nn.parallel.DistributedDataParallel")
MODULES = frozenset({MODULE, MOVES_INPUTS})
PREPARES = frozenset(
    f"accelerate.{home}Accelerator().{name}"
    for home in ("", "accelerator.")
    for name in ("prepare", "prepare_model")
)


@dataclass(frozen=True)
class DeviceValue:
    """A device, or the name or the index of one.

    Args:
        kind: what it is.
        spelled: the file with the string that it is made from, and where that ends.
        by_default: whether something else may be given in its place: it is the default of an option, a
            parameter or a variable of the environment.
    """

    kind: Kind
    spelled: tuple[Path, tuple[int, int]] | None = None
    by_default: bool = False


UNKNOWN = DeviceValue(Kind.UNKNOWN)  # what nothing is known of, handed to a parameter


@dataclass(frozen=True)
class Trait:
    """What holds of a value, whatever else it is."""

    name: str


# A number that is computed from the index of a GPU, and so from that of a replica: `rank * 4`.
OF_INDEX = Trait("computed from an index")
# None on the other replicas: `Tracker() if rank == 0 else None`, and what a function returns so.
ON_SOME = Trait("there on some replicas only")
TRAITS = frozenset({OF_INDEX, ON_SOME})


@dataclass(frozen=True)
class OptionsValue:
    """The options of the script, as `parser.parse_args()` or `@hydra.main` gives them in the file `path`."""

    path: Path


@dataclass(frozen=True)
class Partial:
    """A function of the project with so many positional arguments bound: `functools.partial(f, x)`."""

    of: Function
    bound: int


@dataclass(frozen=True)
class Applied:
    """`Cls.apply` of a class of the project that derives from torch.autograd.Function."""

    of: Class


@dataclass(frozen=True)
class Super:
    """What `super()` is in a method of a class."""

    of: Class


Values = frozenset["Value"]
Value = (
    Function
    | Class
    | ClassInstance
    | ProjectModule
    | External
    | Result
    | Super
    | DeviceValue
    | Trait
    | OptionsValue
    | Partial
    | Applied
)
NOTHING: Values = frozenset()
HANDED_BACK = (Function, Class, ClassInstance, Result, Partial, Applied)


def class_around(scope: Scope | None) -> Class | None:
    """Return the class whose method `scope` is, or lies in."""
    while scope is not None:
        if isinstance(scope, Function) and scope.owner is not None:
            return scope.owner
        scope = scope.parent
    return None


def result_of(called: External) -> Values:
    """Return what calling `called` gives, where that is followed."""
    if MAKES_MODEL.match(called.name):
        return frozenset([MODULE])
    return frozenset([Result(called.name)]) if FOLLOWED.search(called.name) else NOTHING


def handed_back(called: External, values: Values) -> Values:
    """Return those of `values` that `called`, given them, may hand back: a wrapped function or optimizer."""
    if SCHEDULER.search(called.name):
        return NOTHING  # made from an optimizer, and none itself
    return frozenset(v for v in values if isinstance(v, HANDED_BACK))
