"""A TARGET that is a file: found, imported, called, or refused with one clear line."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from memfit.core.errors import UsageError
from memfit.jobs import Job
from memfit.jobs.targets import call_target, check_settings, load_function, nearest, parse_settings

GOOD = """
import torch
from memfit.jobs import Job

class Net(torch.nn.Linear):
    pass

def job(batch=4, *, width: int = 3):
    return Job(lambda: Net(width, 1), lambda m, b: m(b).mean(), torch.zeros(batch, width), torch.optim.SGD)

def free(**settings):
    return job(batch=len(settings))

def needs(size):
    return job(batch=size)

def wrong():
    return 42

def raises():
    raise KeyError("no such column")

def exits():
    raise SystemExit(3)

def starved():
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")

def refused():
    return Job("not a model", None, None, None)

NUMBER = 7
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "train_job.py"
    path.write_text(GOOD)
    return path


def refusal(target: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load_function(target)
    assert "\n" not in caught.value.message
    return caught.value


def test_a_function_gives_its_job_with_settings(good: Path) -> None:
    job = call_target(load_function(f"{good}:job"), {"batch": 2, "width": 5}, "the-name")
    assert isinstance(job, Job)
    assert job.name == "the-name"
    assert job.batch.shape == (2, 5)
    assert job.model.in_features == 5


def test_settings_are_json_where_they_parse() -> None:
    pairs = ["batch=8", "lr=1e-3", "optimizer=sgd", "flag=true", "none=null", "path=a=b", 'text="8"', "empty=",
             "sizes=[1,2]"]
    assert parse_settings(pairs) == {
        "batch": 8, "lr": 1e-3, "optimizer": "sgd", "flag": True, "none": None, "path": "a=b", "text": "8", "empty": "",
        "sizes": [1, 2]}


@pytest.mark.parametrize("pair", ["batch", "=8", "two words=1", ""])
def test_a_setting_without_key_or_value_is_refused(pair: str) -> None:
    with pytest.raises(UsageError, match="key=value"):
        parse_settings([pair])


def test_unknown_settings_are_refused_with_the_known_ones(good: Path) -> None:
    with pytest.raises(UsageError, match="'bathc'") as caught:
        call_target(load_function(f"{good}:job"), {"bathc": 2})
    assert caught.value.advice == "known settings: batch, width"
    call_target(load_function(f"{good}:free"), {"anything": 1, "goes": 2})


def test_a_setting_without_default_is_asked_for(good: Path) -> None:
    function = load_function(f"{good}:needs")
    with pytest.raises(UsageError, match="needs a value for 'size'") as caught:
        check_settings(function, {}, "file.py:needs")
    assert "--set size=" in caught.value.advice
    check_settings(function, {"size": 3})


def test_missing_files_and_functions_are_named(good: Path) -> None:
    assert "no file" in refusal(f"{good.parent}/other.py:job").message
    assert "not a Python file" in refusal(f"{good.parent}:job").message
    missing = refusal(f"{good}:jop")
    assert "'jop'" in missing.message
    assert "did you mean job?" in missing.advice
    assert "raises" in missing.advice
    assert "int, not a function" in refusal(f"{good}:NUMBER").message
    unnamed = refusal(str(good))
    assert "names no function" in unnamed.message
    assert "job" in unnamed.advice


@pytest.mark.parametrize(("source", "message", "advice"), [
    ("def job(:\n", "SyntaxError", "line 1"),
    ("import no_such_library_here\n", "no_such_library_here", "install no_such_library_here"),
    ("import sys\nsys.exit(0)\n", "SystemExit", "__main__"),
    ("x = 1\ny = x / 0\n", "ZeroDivisionError", "line 2"),
])
def test_files_that_cannot_be_imported_say_why(tmp_path: Path, source: str, message: str, advice: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    error = refusal(f"{path}:job")
    assert message in error.message
    assert advice in error.advice


def test_what_a_function_does_wrong_is_said_in_one_line(good: Path) -> None:
    for name, words in [("wrong", "gave int, not a Job"), ("raises", "KeyError"), ("exits", "SystemExit"),
                        ("refused", "model is str")]:
        with pytest.raises(UsageError, match=words) as caught:
            call_target(load_function(f"{good}:{name}"), {}, name)
        assert "\n" not in caught.value.message
        assert caught.value.advice


def test_running_out_of_memory_is_passed_on(good: Path) -> None:
    with pytest.raises(RuntimeError, match="can't allocate"):
        call_target(load_function(f"{good}:starved"), {})


def test_classes_of_the_file_can_be_pickled_and_siblings_imported(good: Path) -> None:
    (good.parent / "sibling_of_train_job.py").write_text("WIDTH = 9\n")
    good.write_text(GOOD + "\nfrom sibling_of_train_job import WIDTH\n")
    first, again = load_function(f"{good}:job"), load_function(f"{good}:job")
    assert first is again
    model = call_target(first, {}).model
    assert type(pickle.loads(pickle.dumps(model))) is type(model)
    assert sys.modules[type(model).__module__].WIDTH == 9


def test_advice_lists_the_nearest_first() -> None:
    assert nearest("vit-mimi", ["gpt2", "vit-mini"]) == "did you mean vit-mini? known: gpt2, vit-mini"
    assert nearest("zzz", ["gpt2"]) == "known: gpt2"
