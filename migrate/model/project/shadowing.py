"""Modules of a user's project with the name of one of this toolkit's packages."""

from __future__ import annotations

from pathlib import Path

from migrate.model.project.project import is_this_toolkits, root_of


def shadowing(name: str, script: Path) -> Path | None:
    """Return the module of the project of `script` that `import NAME` would import, or None.

    Python searches the folder of the started script first. A folder above counts as well, because a script
    there may import this one. A folder that is a package is not searched, unless the script in it is started.

    Args:
        name: the name of a package of this toolkit, such as `shims`.
        script: a script or module of the project.
    """
    script = script.absolute()
    root = root_of(script)
    for folder in script.parents:
        is_package = (folder / "__init__.py").exists()
        if not is_package or (folder == script.parent and _is_started(script)):
            file = module_in(folder, name)
            if file is not None:
                return file
        if folder == root or not folder.resolve().is_relative_to(root):
            break
    return None


def module_in(folder: Path, name: str) -> Path | None:
    """Return the module `name` that lies in `folder`, if it is not this toolkit's own."""
    package = folder / name
    if (package / "__init__.py").is_file():
        return None if is_this_toolkits(package) else package
    module = folder / f"{name}.py"
    return module if module.is_file() else None


def _is_started(script: Path) -> bool:
    try:
        return b"__main__" in script.read_bytes()
    except OSError:
        return False
