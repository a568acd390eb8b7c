"""Values that the analysis of calls knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from migrate.catalogue.words import FOLLOWED, MAKES_MODEL, SCHEDULER
from migrate.model.calls.kind import Kind
from migrate.model.calls.scopes import Class, Function, Scope


@dataclass(frozen=True)
class ClassInstance:
    """Instance of a class of the project; not exact if it may be an instance of a subclass."""

    of: Class
    exact: bool = True


@dataclass(frozen=True)
class ProjectModule:
    """Module or package of the project."""

    path: Path


@dataclass(frozen=True)
class External:
    """Value from outside of the project, by its dotted name."""

    name: str


@dataclass(frozen=True)
class Result:
    """Result of calling an external function: `Result('torch.optim.SGD')` is an optimizer."""

    name: str


# Result of a library function. Its attributes are not followed: `x = x.next` would have no end.
MODULE = Result("torch.nn.Module")
# Module whose forward takes its inputs to the GPU: DistributedDataParallel with device ids, also when
# Accelerate methods wrap a model in it.
MOVES_INPUTS = Result("torch.nn.parallel.DistributedDataParallel")
MODULES = frozenset({MODULE, MOVES_INPUTS})
# Functions that return what a file holds, never their argument.
LOADS = frozenset({"torch.load", "torch.serialization.load"})
PREPARES = frozenset(
    f"accelerate.{home}Accelerator().{name}"
    for home in ("", "accelerator.")
    for name in ("prepare", "prepare_model")
)


@dataclass(frozen=True)
class DeviceValue:
    """Device, or the name or index of a device.

    Args:
        kind: the kind of device.
        spelled: the file with the string that names the device, and the end of the string.
        by_default: whether another value may replace it: it is the default of an option, a parameter or an
            environment variable.
    """

    kind: Kind
    spelled: tuple[Path, tuple[int, int]] | None = None
    by_default: bool = False


UNKNOWN = DeviceValue(Kind.UNKNOWN)  # an unknown value passed to a parameter


@dataclass(frozen=True)
class Trait:
    """Property of a value, in addition to what the value is."""

    name: str


# A number computed from the index of a GPU, and so from that of a replica: `rank * 4`.
OF_INDEX = Trait("computed from an index")
# None on the other replicas: `Tracker() if rank == 0 else None`, also as a function's return value.
ON_SOME = Trait("there on some replicas only")
TRAITS = frozenset({OF_INDEX, ON_SOME})


@dataclass(frozen=True)
class OptionsValue:
    """Options of the script, as `parser.parse_args()` or `@hydra.main` returns them in the file `path`."""

    path: Path


@dataclass(frozen=True)
class Partial:
    """Function of the project with its first positional arguments bound: `functools.partial(f, x)`."""

    of: Function
    bound: int


@dataclass(frozen=True)
class Suspended:
    """Generator object of a project function: `send` and `next` run the function."""

    of: Function


@dataclass(frozen=True)
class Applied:
    """`Cls.apply` of a project class that derives from torch.autograd.Function."""

    of: Class


@dataclass(frozen=True)
class Super:
    """Value of `super()` in a method of a class."""

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
    | Suspended
    | Applied
)
NOTHING: Values = frozenset()
HANDED_BACK = (Function, Class, ClassInstance, Result, Partial, Suspended, Applied)


def class_around(scope: Scope | None) -> Class | None:
    """Return the class that has `scope` as a method, or around it."""
    while scope is not None:
        if isinstance(scope, Function) and scope.owner is not None:
            return scope.owner
        scope = scope.parent
    return None


def result_of(called: External) -> Values:
    """Return the result of calling `called`, if the result is followed."""
    if MAKES_MODEL.match(called.name):
        return frozenset([MODULE])
    return frozenset([Result(called.name)]) if FOLLOWED.search(called.name) else NOTHING


def handed_back(called: External, values: Values) -> Values:
    """Return those of its arguments `values` that `called` may return: a wrapped function or optimizer."""
    if SCHEDULER.search(called.name):
        return NOTHING  # made from an optimizer, and none itself
    if called.name in LOADS:
        return NOTHING  # what a file holds, whatever names the file
    return frozenset(v for v in values if isinstance(v, HANDED_BACK))
