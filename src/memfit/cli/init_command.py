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
    """Write a commented TARGET file that works as it is."""
    from pathlib import Path

    from memfit.core.errors import UsageError
    from memfit.core.files import write_atomic
    from memfit.recipes.template import TEMPLATE

    if Path(path).exists() and not force:
        raise UsageError(f"{path} is there already", "choose another name, or overwrite it with --force")
    write_atomic(Path(path), TEMPLATE)
    show({"schema": "memfit.init/1", "path": path, "target": f"{path}:job"},
         f"wrote {path}; try: memfit estimate {path}:job", as_json)
    return 0
