"""`memfit`: the commands, and how errors become one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

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
from memfit.cli.output import fail, json_mode
from memfit.core.errors import Interrupted, MemfitError, UsageError

app = typer.Typer(
    name="memfit", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Tell it how much memory you have; it trains your PyTorch model in it.")

app.command("demo")(demo_command.demo)
app.command("init")(init_command.init)
app.command("estimate")(estimate_command.estimate)
app.command("plan")(plan_command.plan)
app.command("train")(train_command.train)
app.command("evaluate")(evaluate_command.evaluate)
app.command("prove")(prove_command.prove)
app.command("exec", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(facts_commands.exec_)
app.command("devices")(facts_commands.devices)
app.command("env")(facts_commands.env)

_ClickUsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer carries its own click, or uses click's


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code. Every error is one line (with `--json`, one document)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = json_mode(words)
    try:
        code = app(words, standalone_mode=False, prog_name="memfit")
    except MemfitError as error:
        return fail(error, as_json)
    except _ClickUsageError as error:
        return fail(UsageError(_one_line(error), "memfit --help lists the commands and their options"), as_json)
    except (KeyboardInterrupt, typer.Abort):
        return fail(Interrupted("interrupted"), as_json)
    except BrokenPipeError:
        return 0
    except Exception as error:  # a fault of ours: still one line, and the traceback on request
        return fail(_internal(error), as_json)
    return code if isinstance(code, int) else 0


def _one_line(error: Exception) -> str:
    shown = getattr(error, "format_message", lambda: str(error))()
    return " ".join(shown.split())


def _internal(error: Exception) -> MemfitError:
    import os
    import traceback

    if os.environ.get("MEMFIT_DEBUG"):
        traceback.print_exc(file=sys.stderr)
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = str(error).strip().splitlines()
    return MemfitError(f"internal error: {type(error).__name__}: {text[0] if text else ''} ({where.name}, line {where.lineno})",
                       "set MEMFIT_DEBUG=1 for the traceback, and please report it")


if __name__ == "__main__":
    sys.exit(main())
