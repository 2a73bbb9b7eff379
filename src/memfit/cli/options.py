"""Options that several commands share, declared once."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

# typer reads annotations when it runs, also on Python 3.10
Text = Optional[str]  # noqa: UP045
Count = Optional[int]  # noqa: UP045
Texts = Optional[list[str]]  # noqa: UP045

_BUDGET = "8GiB, 500 MB, bytes, or 40% of plain. Default: what is free."
_FIDELITY = "The furthest from plain that you allow: bitwise, reordered, resampled (default), reduced, adapted."

Target = Annotated[str, typer.Argument(metavar="TARGET", help="A recipe, or path/to/file.py:function.")]
Budget = Annotated[Text, typer.Option(metavar="S", help=_BUDGET)]
PlanFile = Annotated[Text, typer.Option("--plan", metavar="F", help="A plan file instead of a budget.")]
Device = Annotated[Text, typer.Option(metavar="D", help="cpu, cuda, or a name from memfit devices.")]
HostBudget = Annotated[Text, typer.Option(metavar="S", help="Limit for host memory.")]
DiskBudget = Annotated[Text, typer.Option(metavar="S", help="Limit for memory moved to disk (default: free, less 1 GiB).")]
Fidelity = Annotated[Text, typer.Option(metavar="F", help=_FIDELITY)]
Settings = Annotated[Texts, typer.Option("--set", metavar="KEY=VALUE", help="A setting of TARGET; repeatable.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Html = Annotated[Text, typer.Option("--html", metavar="FILE", help="Also write a self-contained HTML page.")]
