"""`python -m memfit.monitor.rates_worker SPEC.json`: measures this machine's rates. The spec: `threads`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from memfit.launch import worker_main
from memfit.monitor.rates import measure_rates


def work(spec: dict[str, Any]) -> Mapping[str, Any]:
    torch.set_num_threads(spec["threads"])
    return measure_rates()


if __name__ == "__main__":
    sys.exit(worker_main(work))
