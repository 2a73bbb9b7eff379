"""Running a child process of ours with the allocator settled, and hearing from it."""

from __future__ import annotations

import codecs
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from memfit.core.errors import (
    Interrupted,
    MemfitError,
    NotSameResult,
    OverBudget,
    RanOutOfMemory,
    UsageError,
)
from memfit.launch import events, start
from memfit.launch.allocator import settled_environment
from memfit.launch.deaths import exit_code, looks_out_of_memory, signal_name

# With busy-waiting OpenMP threads another process slows everything several times over: for what is to be measured.
MEASURING: Mapping[str, str] = {"OMP_WAIT_POLICY": "PASSIVE"}

_TAIL_BYTES = 16 * 1024
_LINGER_S = 0.5  # a grandchild may keep the pipes open after the child has ended
_KINDS: dict[int, type[MemfitError]] = {2: UsageError, 4: RanOutOfMemory, 5: NotSameResult, 6: OverBudget,
                                        130: Interrupted}

Event = dict[str, Any]


@dataclass(frozen=True)
class WorkerResult:
    """How a worker ended. `result` is the payload of its last `result` event; `returncode` is negative for a signal."""

    events: tuple[Event, ...]
    result: Event | None
    returncode: int
    signal: str | None
    stderr_tail: str
    out_of_memory: bool
    timed_out: bool
    interrupted: bool
    took_s: float

    @property
    def error(self) -> MemfitError | None:
        """None if it went well; else what a user should be told: the worker's own error, or how it died."""
        told = next((one for one in reversed(self.events) if one["kind"] == "error"), None)
        if told is not None:
            kind = _KINDS.get(told.get("code", 1), MemfitError)
            return kind(str(told.get("message", "")), str(told.get("advice", "")))
        if self.interrupted:
            return Interrupted("interrupted")
        if self.timed_out:
            return MemfitError(f"the worker was stopped after {self.took_s:.0f} s", "give it more time, or less to do")
        if self.out_of_memory:
            return RanOutOfMemory("the process ran out of memory", "give a larger budget, or allow a lower fidelity")
        return None if self.returncode == 0 else self._death()

    def _death(self) -> MemfitError:
        how = self.signal or f"exit code {exit_code(self.returncode)}"
        last = self.stderr_tail.strip().rpartition("\n")[2][:300]
        return MemfitError(f"the worker ended with {how}: {last}" if last else f"the worker ended with {how}")


def run_worker(module: str, spec: Mapping[str, Any], *, settled: bool = True, exact: bool = False,
               on_event: Callable[[Event], None] | None = None, timeout_s: float | None = None,
               environment: Mapping[str, str] | None = None, limited: bool = False,
               show_output: bool = True) -> WorkerResult:
    """Run `module` as a program in a fresh Python with `spec` (JSON types) in a file as its argument; wait for it.

    The module finds this process's `sys.path`; its `emit`s reach `on_event` here, in this thread, as they come.
    What it prints goes to this process's stderr unless `show_output` is false. `environment` is added to this
    process's; `settled` settles the allocator, `exact`ly if wanted (see `settled_environment`). `limited` says that
    the worker sets a limit on itself, so that a crash counts as out of memory. After `timeout_s` it is killed. Ctrl-C
    here is passed on once, and the worker's end waited for; a second one kills it. It never outlives this process.
    """
    began = time.monotonic()
    with _spec_file(spec) as path, _channel() as (reading, writing):
        process = _start(module, path, writing, _environment(settled, exact, environment))
        os.close(writing)
        talk = _Talk(process, reading, on_event, show_output)
        talk.listen(None if timeout_s is None else began + timeout_s)
    return talk.result(limited, time.monotonic() - began)


class _Talk:
    """One worker's pipes, each read by a thread, answered in the caller's thread."""

    def __init__(self, process: subprocess.Popen[bytes], reading: int, on_event: Callable[[Event], None] | None,
                 show_output: bool) -> None:
        assert process.stdout is not None and process.stderr is not None
        self._process = process
        self._on_event = on_event
        self._show_output = show_output
        self._queue: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._open = {"event", "stdout", "stderr"}
        self._events: list[Event] = []
        self._tail = b""
        self._timed_out = self._interrupted = False
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        lines = os.fdopen(os.dup(reading), "rb")
        for name, chunks in (("event", iter(lines)), ("stdout", _chunks(process.stdout)),
                             ("stderr", _chunks(process.stderr))):
            threading.Thread(target=self._read, args=(name, chunks), daemon=True).start()

    def listen(self, deadline: float | None) -> None:
        """Until the worker has ended and all it said is heard."""
        ended: float | None = None
        try:
            while self._open and (ended is None or time.monotonic() < ended + _LINGER_S):
                try:
                    self._hear()
                    if ended is None and self._process.poll() is not None:
                        ended = time.monotonic()
                    if ended is None and deadline is not None and time.monotonic() > deadline:
                        self._timed_out, deadline = True, None
                        self._kill()
                except KeyboardInterrupt:
                    self._interrupt()
            self._process.wait()
        finally:
            if self._process.poll() is None:
                self._kill()
                self._process.wait()

    def result(self, limited: bool, took_s: float) -> WorkerResult:
        code = self._process.returncode
        text = self._tail.decode(errors="replace")
        stopped = self._timed_out or self._interrupted
        died = code != 0 and not stopped and looks_out_of_memory(text, code, limited=limited)
        told = any(one["kind"] == "error" and one.get("code") == RanOutOfMemory.code for one in self._events)
        results = [one for one in self._events if one["kind"] == "result"]
        payload = {key: value for key, value in results[-1].items() if key != "kind"} if results else None
        return WorkerResult(tuple(self._events), payload, code, signal_name(code if code < 0 else None), text,
                            died or told, self._timed_out, self._interrupted, took_s)

    def _read(self, name: str, chunks: Iterator[bytes]) -> None:
        with suppress(OSError):
            for chunk in chunks:
                self._queue.put((name, chunk))
        self._queue.put((name, b""))

    def _hear(self) -> None:
        try:
            name, data = self._queue.get(timeout=0.05)
        except queue.Empty:
            return
        if not data:
            self._open.discard(name)
        elif name == "event":
            self._take(events.parse(data))
        else:
            self._take_output(name, data)

    def _take(self, event: Event | None) -> None:
        if event is None:
            return
        self._events.append(event)
        if self._on_event is not None:
            self._on_event(event)

    def _take_output(self, name: str, data: bytes) -> None:
        if name == "stderr":
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if self._show_output:
            sys.stderr.write(self._decoders[name].decode(data))
            sys.stderr.flush()

    def _interrupt(self) -> None:
        if self._interrupted:
            self._kill()
        self._interrupted = True
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)

    def _kill(self) -> None:
        """The worker and what it started: it leads a session of its own."""
        with suppress(ProcessLookupError):
            if os.name == "posix":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()


def _chunks(pipe: IO[bytes]) -> Iterator[bytes]:
    while chunk := os.read(pipe.fileno(), 65536):
        yield chunk


def _start(module: str, spec: Path, writing: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """In a session of its own, so that a terminal's Ctrl-C reaches the parent only, which passes it on."""
    command = [sys.executable, str(Path(start.__file__)), module, str(spec)]
    environment[start.PATHS] = json.dumps([os.path.abspath(entry) for entry in sys.path])
    environment[start.PARENT] = str(os.getpid())
    environment[events.CHANNEL] = str(events.passable(writing))
    options: Any = events.inheritance(writing)
    process: Any = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, **options)
    return process


def _environment(settled: bool, exact: bool, more: Mapping[str, str] | None) -> dict[str, str]:
    environment = {**os.environ, **(more or {})}
    environment.setdefault("PYTHONUNBUFFERED", "1")  # what it printed must not be lost when it is killed
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the profiler warns of blocks that are older than it
    return settled_environment(environment, exact=exact) if settled else environment


@contextmanager
def _spec_file(spec: Mapping[str, Any]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="memfit-") as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps(spec))
        yield path


@contextmanager
def _channel() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)
