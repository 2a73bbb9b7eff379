"""Predicted allocations against those that were recorded on a card, one by one.

    python benchmarks/cuda_events.py P001 path/to/P001.pickle [--limit 20]

The step of the row is traced and replayed; what its allocator is asked for, size after size, is laid beside the recorded
requests of the snapshot. Printed: how many agree in order, each run that does not with the operator that asked (or, where
only the record has it, the recorded frames), and the peaks.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from cuda_rows import cs336
from memfit.core.trace import Op, Storage, Trace
from memfit.hardware import find_device
from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.cuda_replay import replay
from memfit.simulate.cuda_steps import StepReplay
from memfit.simulate.cuda_workspaces import workspace_bytes
from memfit.simulate.snapshots import Snapshot, load_snapshot
from memfit.trace import trace_job
from memfit.trace.cuda import target_of

Request = tuple[int, str]  # bytes, and who asked


def main() -> None:
    """Compare one row with its snapshot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row")
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("--limit", type=int, default=20, help="differences to print")
    asked = parser.parse_args()
    case = next(one for one in cs336.cases() if one.row == asked.row)
    snapshot = load_snapshot(asked.snapshot)
    predicted, peaks = _predicted(case)
    _compare(predicted, _recorded(snapshot), asked.limit)
    stats = replay(snapshot).allocator.stats
    print(f"peak allocated: predicted {peaks[0]}, recorded {stats.peak_allocated_bytes}")
    print(f"peak reserved: predicted {peaks[1]}, recorded {stats.peak_reserved_bytes}")


def _predicted(case: Any) -> tuple[list[Request], tuple[int, int]]:
    """Requests of the second steady step, and peaks."""
    device = find_device(case.device)
    traces = trace_job(case.build(), target_of(device, case.torch))
    allocator = CachingAllocator(record=True)
    steps = StepReplay(allocator, workspace_bytes(device, {}))
    peak = steps.run(traces.first)
    for _ in range(2):
        assert allocator.log is not None
        allocator.log.clear()
        peak = steps.run(traces.steady)
    requests = [(entry.size, _who(entry.tag, traces.steady)) for entry in allocator.log if entry.action == "alloc"]
    return requests, (peak.allocated_bytes, peak.reserved_bytes)


def _who(tag: object, trace: Trace) -> str:
    if isinstance(tag, Storage):
        return f"{tag.phase} {tag.module} {tag.op}"
    return f"{tag.phase} {tag.module} {tag.name} (scratch)" if isinstance(tag, Op) else ""


def _recorded(snapshot: Snapshot) -> list[Request]:
    return [(event.size, _frames(event.frames)) for event in snapshot.traces[0] if event.action == "alloc"]


def _frames(frames: Sequence[dict[str, Any]]) -> str:
    names = [str(frame.get("name", "")) for frame in frames if "::" not in str(frame.get("name", "")) or "at::" in str(
        frame.get("name", ""))]
    return " < ".join(name[:40] for name in names[:4])


def _compare(predicted: list[Request], recorded: list[Request], limit: int) -> None:
    matcher = difflib.SequenceMatcher(None, [size for size, _ in predicted], [size for size, _ in recorded], autojunk=False)
    same = sum(block.size for block in matcher.get_matching_blocks())
    print(f"requests: predicted {len(predicted)}, recorded {len(recorded)}, the same in order {same}")
    for line in list(_differences(matcher, predicted, recorded))[:limit]:
        print(line)


def _differences(matcher: Any, predicted: list[Request], recorded: list[Request]) -> Iterator[str]:
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            continue
        yield f"{kind} at {a} / {c}"
        yield from (f"  predicted {size:>12}  {who}" for size, who in predicted[a:b][:8])
        yield from (f"  recorded  {size:>12}  {who}" for size, who in recorded[c:d][:8])


if __name__ == "__main__":
    main()
