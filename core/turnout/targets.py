"""What a user named on the command line, imported: ``MODULE:NAME`` or ``path/to/file.py:NAME``."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import itertools
import os
import sys
import traceback
import types
from pathlib import Path

from .errors import CallError


def split_target(target: str) -> tuple[str, str]:
    """Module or file, and the path of attributes in it; that is empty where none is named."""
    place, separator, path = target.rpartition(":")
    # The only colon of a file on Windows may be that of its drive.
    if not separator or target.endswith(".py"):
        return target, ""
    return place, path


def imported(place: str, forms: str) -> types.ModuleType:
    """Import a module by its name or its file, as ``python -m`` and ``python file`` would.

    Parameters
    ----------
    place : str
        Modules are found from the current directory too.
    forms : str
        What a user may give, for errors: ``"MODULE:KERNEL or path/to/file.py:KERNEL"``.

    Raises
    ------
    CallError
        Where there is no such module, or its import fails.
    """
    is_file = place.endswith(".py")
    if not is_file and (not place or place.startswith(".")):
        raise CallError(f"{place!r} is no module; give {forms}")
    folder = os.path.dirname(os.path.abspath(place)) if is_file else os.getcwd()
    if is_file and not os.path.isfile(place):
        raise CallError(f"there is no file {place!r}")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return _import_file(Path(place)) if is_file else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{place}.".startswith(f"{error.name}."):
            raise CallError(
                f"there is no module {error.name!r} in {os.getcwd()} or on Python's path; give "
                f"{forms}"
            ) from error
        raise CallError(f"{place} cannot be imported:\n{failure_text(error)}") from error
    except (Exception, SystemExit) as error:
        raise CallError(f"{place} cannot be imported:\n{failure_text(error)}") from error


def _import_file(path: Path) -> types.ModuleType:
    name = f"turnout_show_{path.stem}"  # a name that hides no module of the same name
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # as for every file that ends with .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def attribute(module: types.ModuleType, place: str, path: str, known: str) -> object:
    """Return what a module has under a path such as ``"Solver.relax"``.

    Parameters
    ----------
    module : module
    place : str
        How the user named it.
    path : str
    known : str
        What there is to choose from, for errors.

    Raises
    ------
    CallError
        Where there is nothing under that path.
    """
    value: object = module
    for name in path.split("."):
        if not hasattr(value, name):
            close = difflib.get_close_matches(name, dir(value), n=1)
            suggestion = f" (did you mean {close[0]!r}?)" if close else ""
            raise CallError(f"{place} has no {path!r}{suggestion}; {known}")
        value = getattr(value, name)
    return value


def failure_text(error: BaseException) -> str:
    """Return an error of a user's code as Python prints it, from the user's first line on."""
    frames = traceback.extract_tb(error.__traceback__)
    users = itertools.dropwhile(lambda frame: _is_ours(frame) or _is_import(frame), frames)
    shown = [frame for frame in users if not _is_import(frame)]
    lines = traceback.format_list(shown) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return os.path.dirname(frame.filename) == os.path.dirname(__file__)


def _is_import(frame: traceback.FrameSummary) -> bool:
    return frame.filename == importlib.__file__ or frame.filename.startswith("<frozen import")
