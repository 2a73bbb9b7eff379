"""Predicted allocations against those that were recorded on a card, one by one.

    python benchmarks/cuda_events.py FOLDER            every row whose recording FOLDER/ROW.pickle is there;
                                                       results/cuda_events.md
    python benchmarks/cuda_events.py FOLDER P001 ...   these only, printed with [--limit 20] differences each

The step of the row is traced and replayed; what its allocator is asked for, size after size, is laid beside the recorded
requests of the snapshot. Told: how many agree in order, each run that does not with the operator that asked (or, where
only the record has it, the recorded frames), blocks that only one of the two holds before the step, and the peaks.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from cuda_rows import all_cases
from machine import heading
from memfit.core.trace import Op, Storage, Trace
from memfit.hardware import find_device
from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.cuda_replay import replay
from memfit.simulate.cuda_settings import AllocatorSettings
from memfit.simulate.cuda_start import starting_state
from memfit.simulate.cuda_steps import StepReplay
from memfit.simulate.cuda_workspaces import workspace_bytes
from memfit.simulate.snapshots import Snapshot, load_snapshot
from memfit.trace import trace_job
from memfit.trace.cuda import target_of

Request = tuple[int, str]  # bytes, and who asked
RESULTS = Path(__file__).parent / "results" / "cuda_events.md"
NOTES = {
    "P001": "Before the step the script still holds its warm-up batches (5 x 4 x 128 int64, twice) and has dropped the last "
            "logits, which the job here drops as the next step begins: they get a block elsewhere, whose end (491,520 bytes) "
            "is too small to be split off.",
    "P002": "The last requests are the job's own: a script without a loss is traced as one with a sum.",
    "P010": "The author's own model, of which only a part is published: the row's is built like the course's, and differs.",
    "P012": "The author's own model, of which only a part is published: the row's is built like the course's, and differs.",
    "P022": "Four requests are the job's own: a script without a loss is traced as one with a sum, of a parameter.",
}


class Predicted(NamedTuple):
    """Requests of a steady step, sizes of the blocks in use before it, and its peaks (allocated, reserved)."""

    requests: list[Request]
    live: Counter[int]
    peaks: tuple[int, int]


def main() -> None:
    """Compare rows with their snapshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--limit", type=int, default=20, help="differences to print")
    asked = parser.parse_args()
    cases = all_cases()
    there = [row for row in cases if (asked.folder / f"{row}.pickle").exists()]
    lines = heading("Allocations of a step, one by one", "python benchmarks/cuda_events.py FOLDER")
    for row in asked.rows or there:
        found = list(_compared(cases[row], load_snapshot(asked.folder / f"{row}.pickle"), asked.limit))
        print("\n".join([row, *found]), flush=True)
        lines += [f"## {row}", "", *([NOTES[row], ""] if row in NOTES else []), "```", *found, "```", ""]
    if not asked.rows:
        RESULTS.write_text("\n".join(lines))


def _compared(case: Any, snapshot: Snapshot, limit: int) -> Iterator[str]:
    live = Counter(block.size for segment in starting_state(snapshot, 0, AllocatorSettings()) for block in segment.live)
    predicted = _predicted(case, from_start=not live)
    yield from _requests(predicted.requests, _recorded(snapshot), limit)
    yield f"in use before the step: only predicted {dict(predicted.live - live)}, only recorded {dict(live - predicted.live)}"
    stats = replay(snapshot).allocator.stats
    for name, mine, its in zip(("allocated", "reserved"), predicted.peaks,
                               (stats.peak_allocated_bytes, stats.peak_reserved_bytes), strict=True):
        yield f"peak {name}: predicted {mine}, recorded {its} ({100 * (mine / its - 1):+.4f} %)"


def _predicted(case: Any, *, from_start: bool) -> Predicted:
    """The second steady step; the first, with what was there before, of a recording from the start of the process."""
    device = find_device(case.device)
    traces = trace_job(case.build(), target_of(device, case.torch))
    allocator = CachingAllocator(record=True)
    steps = StepReplay(allocator, workspace_bytes(device, {}))
    assert allocator.log is not None
    live: Counter[int] = Counter()
    for trace in [traces.first] if from_start else [traces.first, traces.steady, traces.steady]:
        live = Counter(block.size for block in allocator.blocks() if block.allocated)
        allocator.log.clear()
        peak = steps.run(trace)
    requests = [(entry.size, _who(entry.tag, trace)) for entry in allocator.log if entry.action == "alloc"]
    return Predicted(requests, live, (peak.allocated_bytes, peak.reserved_bytes))


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


def _requests(predicted: list[Request], recorded: list[Request], limit: int) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, [size for size, _ in predicted], [size for size, _ in recorded], autojunk=False)
    same = sum(block.size for block in matcher.get_matching_blocks())
    yield f"requests: predicted {len(predicted)}, recorded {len(recorded)}, the same in order {same}"
    yield from list(_differences(matcher, predicted, recorded))[:limit]


def _differences(matcher: Any, predicted: list[Request], recorded: list[Request]) -> Iterator[str]:
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            continue
        yield f"{kind} at {a} / {c}"
        yield from (f"  predicted {size:>12}  {who}" for size, who in predicted[a:b][:8])
        yield from (f"  recorded  {size:>12}  {who}" for size, who in recorded[c:d][:8])


if __name__ == "__main__":
    main()
