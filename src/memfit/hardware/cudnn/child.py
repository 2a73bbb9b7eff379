"""The process that holds cuDNN: one question a line, one answer a line. If it crashes, the asking process lives on."""

from __future__ import annotations

import json
import sys
from typing import Any

from memfit.hardware.cudnn.backend import CudnnError, Library
from memfit.hardware.cudnn.question import ConvolutionCall


def main() -> None:
    """Answer until the input ends. The first line says which version answers."""
    try:
        library = Library(sys.argv[1])
    except CudnnError as error:
        _say({"error": str(error)})
        return
    _say({"version": library.version})
    for line in sys.stdin:
        _say(_answer(library, json.loads(line)))


def _answer(library: Library, question: dict[str, Any]) -> dict[str, Any]:
    try:
        call = ConvolutionCall.from_json(question["call"])
        return {"configurations": library.configurations(call, question["card"])}
    except CudnnError as error:
        return {"error": str(error)}


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer, separators=(",", ":")), flush=True)


if __name__ == "__main__":
    main()
