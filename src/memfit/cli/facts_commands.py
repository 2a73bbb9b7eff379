"""`memfit exec`, `devices` and `env`: any script with the allocator settled, and facts of this machine."""

from __future__ import annotations

import sys

import typer

from memfit.cli import options
from memfit.cli.output import show


def exec_(context: typer.Context, as_json: options.AsJson = False) -> int:
    """Any script, with the allocator settled.

    memfit exec -- python train.py: on a CPU its resident memory then follows its tensors. The exit code is the
    script's. With --json its stdout goes to stderr.
    """
    from memfit.core.errors import UsageError
    from memfit.launch import run_exec

    if not context.args:
        raise UsageError("exec was given nothing to run", "memfit exec -- python train.py")
    code, document = run_exec(context.args, json=as_json)
    if as_json:
        show(document, "", as_json)
    return code


def devices(as_json: options.AsJson = False) -> int:
    """This machine's devices and the catalogue of cards."""
    from memfit.cli.devices_command import run

    code, document, text = run(width=100 if not sys.stdout.isatty() else None)
    show(document, text, as_json)
    return code


def env(as_json: options.AsJson = False) -> int:
    """Facts for a bug report: machine, versions, allocator."""
    from memfit.cli.env_command import run

    code, document, text = run()
    show(document, text, as_json)
    return code
