"""`memfit`: the commands, and how errors become one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from memfit.cli import (
    demo_command,
    estimate_command,
    evaluate_command,
    facts_commands,
    init_command,
    plan_command,
    prove_command,
    train_command,
)
from memfit.cli.failures import told
from memfit.cli.output import fail, json_mode, silence_stdout
from memfit.core.errors import Interrupted
from memfit.launch import quiet_imports


class _Commands(TyperGroup):
    """Ctrl-C is an error like others, and a reader that has left is none: typer has its own ways with both."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None
        except BrokenPipeError:
            silence_stdout()
            return 0


app = typer.Typer(
    name="memfit", cls=_Commands, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_EXEC = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

app.command("demo")(demo_command.demo)
app.command("init")(init_command.init)
app.command("estimate")(estimate_command.estimate)
app.command("plan")(plan_command.plan)
app.command("train")(train_command.train)
app.command("evaluate")(evaluate_command.evaluate)
app.command("prove")(prove_command.prove)
app.command("exec", context_settings=_EXEC)(facts_commands.exec_)
app.command("devices")(facts_commands.devices)
app.command("env")(facts_commands.env)


def _print_version(wanted: bool) -> None:
    if wanted:
        from memfit import __version__

        print(f"memfit {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version.")]


@app.callback()
def memfit(version: Version = False) -> None:
    """Tell it how much memory you have; it trains your PyTorch model in it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code. Every error is one line (with `--json`, one document)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    quiet_imports()
    try:
        code = app(words or ["--help"], standalone_mode=False, prog_name="memfit")
    except BaseException as error:
        return fail(told(error), json_mode(words))
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
