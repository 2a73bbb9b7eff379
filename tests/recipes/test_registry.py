"""Recipes by name: what is known, what is refused, and that a file is a TARGET as well."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from memfit.core.errors import UsageError
from memfit.jobs import run_step
from memfit.jobs.targets import check_settings
from memfit.recipes import RECIPES, load, prepare, recipe
from memfit.recipes.template import TEMPLATE

IMAGES = ("vit-mini", "vit-s16", "vit-base", "resnet18", "resnet50", "mobilenet-v3", "efficientnet-b0")


def printed(code: str) -> str:
    """What a fresh Python process prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_takes_the_contracts_settings(name: str) -> None:
    known = set(inspect.signature(prepare(name)).parameters)
    size = "image" if name in IMAGES else "seq"
    assert {"batch", size, "optimizer", "lr", "seed", "data"} <= known
    check_settings(prepare(name), {})


def test_unknown_names_come_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no recipe 'vit-mimi'") as caught:
        prepare("vit-mimi")
    assert caught.value.advice.startswith("did you mean vit-mini")
    with pytest.raises(UsageError, match="no setting 'imgae'") as caught:
        load("vit-mini", {"imgae": 32})
    assert "batch, image, classes" in caught.value.advice


@pytest.mark.parametrize(("name", "settings", "words"), [
    ("vit-mini", {"optimizer": "adamx"}, "no optimizer 'adamx'"),
    ("vit-mini", {"lr": -1}, "lr is -1"),
    ("vit-mini", {"lr": "fast"}, "lr is 'fast'"),
    ("vit-mini", {"batch": 0}, "batch is 0"),
    ("vit-mini", {"batch": 2.5}, "batch is 2.5"),
    ("vit-mini", {"image": 30}, "image is 30"),
    ("vit-mini", {"dropout": 1.0}, "dropout is 1.0"),
    ("vit-mini", {"seed": -1}, "seed is -1"),
    ("vit-mini", {"classes": 4}, "10 classes and the model 4"),
    ("resnet18", {"classes": "ten"}, "classes is 'ten'"),
    ("resnet50", {"image": None}, "image is None"),
    ("vit-mini", {"data": "/nowhere"}, "no folder"),
    ("bert-mini", {"task": "poetry"}, "task is 'poetry'"),
    ("bert-mini", {"seq": 4}, "seq is 4"),
    ("gpt-mini", {"vocab": 100}, "vocab is 100"),
    ("gpt-mini", {"data": "/nowhere"}, "no file or folder"),
    ("bert-mini", {"data": __file__}, "not a folder"),
])
def test_settings_that_make_no_sense_are_refused(name: str, settings: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        load(name, settings)
    assert caught.value.advice


@pytest.mark.slow
def test_a_missing_package_is_named_with_the_pip_line() -> None:
    code = (
        "import sys; sys.modules['torchvision'] = None\n"
        "from memfit.core.errors import UsageError\n"
        "from memfit.recipes import prepare\n"
        "try: prepare('vit-mini')\n"
        "except UsageError as error: print(error.message, '|', error.advice)\n")
    out = printed(code)
    assert "needs torchvision" in out
    assert 'pip install "memfit[recipes]"' in out


def test_the_registry_imports_no_model_library() -> None:
    code = "import sys, memfit.recipes; print({'transformers', 'torchvision', 'sklearn'} & set(sys.modules))"
    assert printed(code) == "set()"


@pytest.mark.slow
def test_calling_a_prepared_recipe_imports_no_library() -> None:
    code = (
        "import sys\n"
        "from memfit.recipes import prepare\n"
        "functions = [(prepare('vit-mini'), dict(batch=2)), (prepare('gpt-mini'), dict(batch=2, seq=8))]\n"
        "before = set(sys.modules)\n"
        "for function, settings in functions: function(**settings).model\n"
        "new = set(sys.modules) - before - {'sklearn.datasets.data', 'sklearn.datasets.descr'}\n"
        "print({name.split('.')[0] for name in new} & {'transformers', 'torchvision', 'sklearn', 'PIL'})\n")
    assert printed(code) == "set()"


def test_the_template_works_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "train_job.py"
    path.write_text(TEMPLATE)
    job = load(f"{path}:job", {"batch": 2, "seq": 32})
    assert job.name == f"{path}:job"
    assert load(f"{path}:job", {"batch": 4096, "seq": 128}).batch["ids"].shape == (4096, 128)  # more than the text is long
    first = float(run_step(job, job.batch).loss)
    for batch in list(job.data(0))[:20]:  # type: ignore[operator]
        last = float(run_step(job, batch).loss)
    assert first > 5.0
    assert last < 4.5


def test_recipe_takes_settings_as_keywords() -> None:
    job = recipe("vit-mini", batch=3, optimizer="sgd")
    assert job.name == "vit-mini"
    assert job.batch["pixel_values"].shape == (3, 3, 32, 32)
    assert type(job.optimizer).__name__ == "SGD"
