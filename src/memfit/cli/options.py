"""Options that several commands share, declared once."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

Target = Annotated[str, typer.Argument(metavar="TARGET", help="A recipe, or path/to/file.py:function.")]
Budget = Annotated[Optional[str], typer.Option(metavar="S", help="8GiB, 500 MB, bytes, or 40% of plain. Default: what is free.")]  # noqa: UP045
PlanFile = Annotated[Optional[str], typer.Option("--plan", metavar="F", help="A plan file instead of a budget.")]  # noqa: UP045
Device = Annotated[Optional[str], typer.Option(metavar="D", help="cpu, cuda, or a name from memfit devices.")]  # noqa: UP045
HostBudget = Annotated[Optional[str], typer.Option(metavar="S", help="Limit for host memory.")]  # noqa: UP045
Fidelity = Annotated[Optional[str], typer.Option(metavar="F", help="The furthest from plain that you allow: bitwise, reordered, resampled (default), reduced, adapted.")]  # noqa: UP045, E501
Settings = Annotated[Optional[list[str]], typer.Option("--set", metavar="KEY=VALUE", help="A setting of TARGET; repeatable.")]  # noqa: UP045
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Html = Annotated[Optional[str], typer.Option("--html", metavar="FILE", help="Also write a self-contained HTML page.")]  # noqa: UP045
