"""Find the application that ``module:app`` names, also in the current folder."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import TYPE_CHECKING

from fanin.domain.errors import BadOption

if TYPE_CHECKING:
    import fanin


def load_app(target: str) -> fanin.App | fanin.AsyncApp:
    """Import ``module`` and return its ``app``. Raises `BadOption` with what to do about it."""
    import fanin

    module_name, colon, attribute = target.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        hint = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise BadOption(f"{target!r} is a file; name the module: {hint}:{attribute or 'app'}")
    if not module_name or (colon and not attribute):
        raise BadOption(f"{target!r}: write MODULE:APP, for example tasks:app")
    attribute = attribute or "app"
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as problem:
        wanted = problem.name or module_name
        if module_name == wanted or module_name.startswith(wanted + "."):
            raise BadOption(
                f"there is no module {wanted!r}, neither in {here} nor installed: start in the folder that holds it, "
                "or set PYTHONPATH"
            ) from None
        raise BadOption(f"{module_name} imports {wanted!r}, which is not installed:\n{_trace(problem)}") from problem
    except Exception as problem:
        raise BadOption(
            f"importing {module_name} failed with {type(problem).__name__}: {problem}\n{_trace(problem)}"
        ) from problem
    found: object = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            apps = sorted(key for key, value in vars(module).items() if isinstance(value, fanin.App | fanin.AsyncApp))
            known = f"it has: {', '.join(apps)}" if apps else "it has no fanin.App at its top level"
            raise BadOption(f"module {module_name} has no {attribute!r}; {known}")
        found = getattr(found, name)
    if not isinstance(found, fanin.App | fanin.AsyncApp):
        raise BadOption(f"{target} is a {type(found).__name__}, not a fanin.App")
    if not found.tasks:
        raise BadOption(f"{target} has no tasks: decorate a function with @{attribute}.task in {module_name}")
    return found


def _trace(problem: BaseException) -> str:
    """Where it happened, without our own frames and those of the import machinery."""
    frames = [
        frame
        for frame in traceback.extract_tb(problem.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    return "".join(traceback.format_list(frames)).rstrip()
