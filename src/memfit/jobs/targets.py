"""Loading a TARGET that is a user's file: `path/to/file.py:function`, its settings, and the call that gives a Job."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import inspect
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from memfit.core.errors import MemfitError, UsageError
from memfit.jobs.blame import users_line
from memfit.jobs.job import Job

JobFunction = Callable[..., Job]
_MOST_NAMES = 20
_WORDS: Mapping[Any, tuple[type, str]] = {  # annotations of settings, as types or as postponed text
    **dict.fromkeys((int, "int"), (int, "a whole number")), **dict.fromkeys((float, "float"), (float, "a number")),
    **dict.fromkeys((bool, "bool"), (bool, "true or false")), **dict.fromkeys((str, "str"), (str, "a word"))}
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "could not create a primitive")


def is_path(target: str) -> bool:
    """Whether TARGET means a file rather than a recipe's name."""
    return ":" in target or target.endswith(".py") or "/" in target or "\\" in target


def load_function(target: str) -> JobFunction:
    """Import the file of `path/to/file.py:function` and return the function, not called yet.

    The file's folder is put on `sys.path`, as Python does for a script. Raises UsageError if the file is missing or
    cannot be imported, or has no such function; the advice lists the functions that it has.
    """
    path, name = _file_and_name(target)
    module = _import_file(path)
    found = getattr(module, name, None)
    if found is None:
        raise UsageError(f"{path} has no function {name!r}", _functions_advice(path, name))
    if not callable(found):
        raise UsageError(f"{name} in {path} is {type(found).__name__}, not a function", _functions_advice(path, name))
    return cast(JobFunction, found)


def parse_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """`["batch=8", "optimizer=sgd"]` as keyword arguments: the value is JSON where it parses, else a string."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip()
        if not equals or not key.isidentifier():
            raise UsageError(f"--set {pair!r} is not key=value", "write it as --set batch=8")
        settings[key] = _value(text)
    return settings


def check_settings(function: Callable[..., Any], settings: Mapping[str, Any], target: str = "") -> None:
    """Raise UsageError for a setting that the function does not take, or a missing one that it needs."""
    shown = target or getattr(function, "__name__", "the target")
    parameters = _parameters(function)
    known = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        unknown = [key for key in settings if key not in known]
        if unknown:
            raise UsageError(f"{shown} has no setting {unknown[0]!r}", f"known settings: {', '.join(known) or 'none'}")
    missing = [name for name in known if parameters[name].default is inspect.Parameter.empty and name not in settings]
    if missing:
        raise UsageError(f"{shown} needs a value for {missing[0]!r}", f"give it with --set {missing[0]}=VALUE")
    for key, value in settings.items():
        kind = _WORDS.get(getattr(parameters.get(key), "annotation", None))
        if kind is not None and not _is_of(value, kind[0]):
            raise UsageError(f"{shown}: {key} is {value!r}, not {kind[1]}", f"give {kind[1]} with --set {key}=VALUE")


def _is_of(value: Any, kind: type) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def call_target(function: JobFunction, settings: Mapping[str, Any], target: str = "") -> Job:
    """`function(**settings)`, checked to give a Job; `job.name` is the target.

    Raises UsageError if the settings do not suit, the function raises, or gives something else. Running out of
    memory is passed on as it is: under an enforced limit that is an outcome, not a mistake in the file.
    """
    shown = target or getattr(function, "__name__", "the target")
    check_settings(function, settings, target)
    try:
        job = function(**settings)
    except MemfitError:
        raise
    except (Exception, SystemExit) as error:
        if _is_out_of_memory(error):
            raise
        raise UsageError(f"{shown} raised {_one_line(error)}", _where(error)) from error
    if not isinstance(job, Job):
        raise UsageError(f"{shown} gave {type(job).__name__}, not a Job",
                         "return memfit.Job(model, loss, batch, optimizer)")
    job.name = target or job.name
    return job


def nearest(name: str, known: Iterable[str], label: str = "known") -> str:
    """Advice that leads with the names most like `name`, then lists them (the first twenty)."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    listed = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    return f"{hint}{label}: {listed}" if names else "none are known"


def _file_and_name(target: str) -> tuple[Path, str]:
    text, colon, name = target.rpartition(":")
    if not colon or name.endswith(".py") or "/" in name or "\\" in name:  # no function, or only a drive's colon
        path = Path(target)
        _check_file(path)
        raise UsageError(f"{target} names no function", f"write {target}:FUNCTION; {_functions_advice(path, '')}")
    path = Path(text)
    _check_file(path)
    return path, name


def _check_file(path: Path) -> None:
    if not path.exists():
        raise UsageError(f"there is no file {path}", "give path/to/file.py:function, or a recipe's name")
    if path.is_dir() or path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file", "give it as path/to/file.py:function")


def _import_file(path: Path) -> ModuleType:
    """Import once for each state of the file, so that its classes stay the same (pickling looks them up by name)."""
    resolved = path.resolve()
    stamp = resolved.stat().st_mtime_ns
    name = f"memfit_target_{resolved.stem}_{zlib.crc32(str(resolved).encode()):08x}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__memfit_stamp__", None) == stamp:
        return known
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported", "give a Python source file")
    module = importlib.util.module_from_spec(spec)
    if str(resolved.parent) not in sys.path:
        sys.path.insert(0, str(resolved.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, (KeyboardInterrupt, MemfitError)) or _is_out_of_memory(error):
            raise
        raise UsageError(f"{path} cannot be imported: {_one_line(error)}", _import_advice(error)) from error
    module.__dict__["__memfit_stamp__"] = stamp
    return module


def _import_advice(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"correct line {error.lineno}"
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name}, or run memfit with the Python that has it"
    if isinstance(error, SystemExit):
        return 'put what should only run as a script under `if __name__ == "__main__":`'
    return _where(error)


def _functions_advice(path: Path, name: str) -> str:
    """The functions defined in the file, read without running it."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8", errors="replace")).body
    except SyntaxError as error:
        return f"{path} has a syntax error in line {error.lineno}"
    names = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return nearest(name, names, f"functions in {path}") if names else f"{path} defines no function"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some callables written in C tell nothing
        return {"settings": inspect.Parameter("settings", inspect.Parameter.VAR_KEYWORD)}


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error).lower() for words in OUT_OF_MEMORY))


def _one_line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:200]}" if words else type(error).__name__


def _where(error: BaseException) -> str:
    line = users_line(error)
    return f"see {line}" if line else ""
