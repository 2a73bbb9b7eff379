"""First file of a child process: `python start.py MODULE SPEC.json` runs MODULE as a program, as its parent sees it.

The child searches the parent's `sys.path` (in a notebook or a test that is not what a fresh Python has, and the
current folder must not shadow the standard library), and dies with its parent.
"""

from __future__ import annotations

import json
import os
import runpy
import sys

PATHS = "MEMFIT_PATHS"
PARENT = "MEMFIT_PARENT"


def main() -> None:
    paths = json.loads(os.environ.pop(PATHS, "null"))
    if paths:
        sys.path[:] = paths
    parent = int(os.environ.pop(PARENT, "0"))
    if parent:
        from memfit.launch.together import die_with_parent

        die_with_parent(parent)
    module = sys.argv[1]
    sys.argv[:] = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
