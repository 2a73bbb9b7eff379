"""`memfit init train_job.py`: a commented TARGET file to fill in."""

from __future__ import annotations

from typing import Annotated

import typer

from memfit.cli import options
from memfit.cli.output import show


def init(
    path: Annotated[str, typer.Argument(metavar="FILE", help="The file to write, such as train_job.py.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    as_json: options.AsJson = False,
) -> int:
    """Write a commented TARGET file to fill in.

    It works as it is: FILE:job trains a small transformer.
    """
    from pathlib import Path

    from memfit.core.errors import UsageError
    from memfit.core.files import write_atomic
    from memfit.recipes.template import TEMPLATE

    file = Path(path)
    if file.suffix != ".py":
        raise UsageError(f"{path} does not end in .py, and would not be found as a TARGET", f"memfit init {path}.py")
    if file.is_dir() or (file.exists() and not force):
        raise UsageError(f"{path} is there already", "choose another name, or overwrite a file with --force")
    write_atomic(file, TEMPLATE.replace("train_job.py", file.name))
    target = f"{path}:job"
    document = {"schema": "memfit.init/1", "path": path, "target": target}
    show(document, f"wrote {path}; try: memfit estimate {target}", as_json)
    return 0
