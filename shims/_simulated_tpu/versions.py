"""Versions that the simulation of torch_tpu was made for, and the check that they are installed.

The simulation uses private names of torch_tpu and positions in the function table of a PJRT plugin.
Both may change with any release. Other versions are therefore refused before anything starts.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from shims.errors import NotSimulatedError

# Distribution -> its version. Of torch, the minor version.
TESTED = {"torch": "2.13", "torch_tpu": "0.2.0", "lammps-jax-pjrt-cpu": "0.11.2"}
PLUGIN = "lammps-jax-pjrt-cpu"
_PLUGIN_MODULE, _PLUGIN_FILE = "lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"
# Minor versions of torch that torch_tpu 0.2.0 has C++ code for. About its other versions nothing is
# known.
TORCH_MINORS = ("2.11", "2.12", "2.13", "2.14", "2.15")

# Chips of one host, as in torch_tpu's own tables: v5p has hosts of all sizes, v5e and v6e none of 2.
HOSTS = (1, 2, 4, 8)

INSTALL = "make install-torch-tpu in a clone of tpu-migrate makes an environment for it"


@dataclass(frozen=True)
class Problem:
    """Reason why torch_tpu, or its simulation, does not work in this environment.

    Attributes:
        package: the distribution that it is about.
        what: the problem, in one line.
        remedy: advice, in one line.
    """

    package: str
    what: str
    remedy: str


def installed(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def problems(version_of: Callable[[str], str | None] = installed) -> list[Problem]:
    """Return what keeps torch_tpu from working here, on a TPU as well as simulated.

    Args:
        version_of: returns the installed version of a distribution, or None.
    """
    torch_tpu = version_of("torch_tpu")
    if torch_tpu is None:
        return [Problem("torch_tpu", "torch_tpu is not installed", INSTALL)]
    result = []
    torch = version_of("torch")
    is_known = torch_tpu == TESTED["torch_tpu"]
    if torch is None or (is_known and minor(torch) not in TORCH_MINORS):
        range_ = f" {TORCH_MINORS[0]} to {TORCH_MINORS[-1]}" if is_known else ""
        what = f"torch_tpu {torch_tpu} needs torch{range_}, and torch is {torch}"
        result.append(Problem("torch", what, INSTALL))
    xla = version_of("torch_xla")
    if xla is not None:
        what = f"torch_xla {xla} is in the same environment, which needs torch {minor(xla)}"
        result.append(Problem("torch_xla", what, f"use two environments; {INSTALL}"))
    return result


def problems_of_simulation(
    version_of: Callable[[str], str | None] = installed,
) -> list[Problem]:
    """Return what keeps the simulation from working here: `problems`, and its own.

    Args:
        version_of: returns the installed version of a distribution, or None.
    """
    return [*problems(version_of), *problems_of_simulation_alone(version_of)]


def problems_of_simulation_alone(
    version_of: Callable[[str], str | None] = installed,
) -> list[Problem]:
    """Return what keeps the simulation from working here, and torch_tpu not on a TPU: untested versions.

    Args:
        version_of: returns the installed version of a distribution, or None.
    """
    result = []
    named = {problem.package for problem in problems(version_of)}
    for package, tested in TESTED.items():
        version = version_of(package)
        if package in named or (version is None and package != PLUGIN):
            continue
        if version is None:
            what = f"{package} is not installed: the simulation of a TPU compiles with it"
            result.append(Problem(package, what, INSTALL))
        elif (minor(version) if package == "torch" else version) != tested:
            what = f"{package} is {version}, and the simulation of a TPU is tested with {tested}"
            result.append(Problem(package, what, INSTALL))
    return result


def require() -> None:
    """Check the versions of the environment.

    Raises:
        NotSimulatedError: the message has the first problem.
    """
    for problem in problems_of_simulation():
        raise NotSimulatedError(problem.what, problem.remedy)


def problem_of_host(ranks: int | str) -> Problem | None:
    """Return the problem if no TPU host has a chip for each of this number of ranks.

    Args:
        ranks: the number, or the text of the environment variable that sets it.
    """
    if str(ranks) in map(str, HOSTS):
        return None
    what = f"{ranks} ranks requested, and no TPU host has {ranks} chips"
    return Problem("torch_tpu", what, "use 1, 2, 4 or 8 ranks (on v5e and v6e 1, 4 or 8)")


def require_host(ranks: int) -> None:
    """Check that a TPU host with a chip for each of this number of ranks exists.

    Raises:
        NotSimulatedError: there is none.
    """
    problem = problem_of_host(ranks)
    if problem is not None:
        raise NotSimulatedError(problem.what, problem.remedy)


def plugin_file() -> Path:
    """Return the path of the PJRT plugin for the CPU.

    Raises:
        NotSimulatedError: the file is not there.
    """
    spec = importlib.util.find_spec(_PLUGIN_MODULE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, _PLUGIN_FILE)
        if path.is_file():
            return path
    raise NotSimulatedError(f"{PLUGIN} has no file {_PLUGIN_FILE}", INSTALL)


def minor(version: str) -> str:
    """Return the first two numbers of a version, as in "2.13"."""
    return ".".join(version.split("+")[0].split(".")[:2])
