"""The settings of PyTorch's CUDA caching allocator, as `PYTORCH_ALLOC_CONF` writes them. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from memfit.core.errors import UsageError
from memfit.core.units import MIB
from memfit.simulate.cuda_settings_syntax import Value, parse_pairs, single, wrong

MIN_BLOCK = 512
SMALL_LIMIT = MIB  # requests up to here use the small pool
SMALL_SEGMENT = 2 * MIB
MEDIUM_LIMIT = 10 * MIB  # from here a segment is made to measure
LARGE_ROUNDING = 2 * MIB
UNLIMITED = 2**63 - 1
SIZE_CLASSES = 16  # of roundup_power2_divisions: 1 MiB, 2 MiB, ... 32 GiB and above
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the first one that is set counts


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What changes the placement of blocks. The defaults are PyTorch's.

    `roundup_power2_divisions` has one entry for each of SIZE_CLASSES; `memory_fraction` is None where no limit is set.
    `notes` says which settings were read but change nothing here.
    """

    max_split_bytes: int = UNLIMITED
    max_non_split_rounding_bytes: int = 20 * MIB
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] = (0,) * SIZE_CLASSES
    expandable_segments: bool = False
    large_segment_bytes: int = 20 * MIB
    memory_fraction: float | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """The settings that `text` gives (`max_split_size_mb:128,expandable_segments:True`).

        Raises UsageError that names the key and the value where PyTorch would refuse it or silently cut it short.
        """
        settings, given = cls(), set[str]()
        for key, value in parse_pairs(text):
            settings = replace(settings, **_fields(key, value, settings.notes))
            given.add(key)
        _check_against_large_segments(settings, given)
        return settings

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> AllocatorSettings:
        """The settings of a process with this environment. Raises UsageError as `parse` does, naming the variable."""
        for variable in VARIABLES:
            if environment.get(variable):
                try:
                    return cls.parse(environment[variable])
                except UsageError as error:
                    raise UsageError(f"{variable}: {error.message}", error.advice) from None
        return cls()

    def rounded(self, size: int) -> int:
        """Bytes of the smallest block that can serve a request of `size` bytes."""
        if size < MIN_BLOCK:
            return MIN_BLOCK
        divisions = self.roundup_power2_divisions[min(max(size.bit_length() - 21, 0), SIZE_CLASSES - 1)]
        if divisions > 1 and size > MIN_BLOCK * divisions:
            step = (1 << (size.bit_length() - 1)) // divisions
            return -(-size // step) * step
        return (size + MIN_BLOCK - 1) & -MIN_BLOCK

    def fraction_bytes(self, total_bytes: int | None) -> int:
        """What segments may take in all, of a card with `total_bytes`, under the memory fraction."""
        if self.memory_fraction is None or total_bytes is None:
            return UNLIMITED
        return int(self.memory_fraction * total_bytes)

    def segment_bytes(self, rounded: int) -> int:
        """Bytes asked from the driver for a block of `rounded` bytes."""
        if rounded <= SMALL_LIMIT:
            return SMALL_SEGMENT
        if rounded < MEDIUM_LIMIT:
            return self.large_segment_bytes
        return -(-rounded // LARGE_ROUNDING) * LARGE_ROUNDING


def _fields(key: str, value: Value, notes: tuple[str, ...]) -> dict[str, object]:
    """The fields of AllocatorSettings that `key: value` sets."""
    if key in _FIELDS:
        name, read = _FIELDS[key]
        return {name: read(key, value)}
    if key not in _IGNORED:
        raise UsageError(f"allocator setting {key!r} (value {_shown(value)!r}) is not known",
                         "known are: " + ", ".join(sorted((*_FIELDS, *_IGNORED))))
    _IGNORED[key](key, value)
    if key == "backend" and value == "cudaMallocAsync":
        return {"notes": (*notes, "backend:cudaMallocAsync has other rules; the native one is simulated instead")}
    return {"notes": (*notes, f"{key}:{_shown(value)} changes no placement")}


def _check_against_large_segments(settings: AllocatorSettings, given: set[str]) -> None:
    least = settings.large_segment_bytes
    for key, size in (("max_split_size_mb", settings.max_split_bytes),
                      ("max_non_split_rounding_mb", settings.max_non_split_rounding_bytes)):
        if key in given and size < least:
            raise wrong(key, str(size // MIB), f"at least large_segment_size_mb ({least // MIB})")


def _megabytes(least: int = 0) -> Callable[[str, Value], int]:
    meaning = "a whole number of MB" + (f", at least {least}" if least else "")

    def read(key: str, value: Value) -> int:
        text = single(key, value, meaning)
        if not text.isdecimal() or int(text) < least:
            raise wrong(key, text, meaning)
        return min(int(text) * MIB, UNLIMITED)
    return read


def _between(low: float, high: float, *, inclusive: bool) -> Callable[[str, Value], float]:
    meaning = f"a number from {low:g} to {high:g}" + ("" if inclusive else ", both excluded")

    def read(key: str, value: Value) -> float:
        text = single(key, value, meaning)
        try:
            number = float(text)
        except ValueError:
            raise wrong(key, text, meaning) from None
        if not (low <= number <= high if inclusive else low < number < high):
            raise wrong(key, text, meaning)
        return number
    return read


def _flag(key: str, value: Value) -> bool:
    text = single(key, value, "True or False")
    if text not in ("True", "False"):
        raise wrong(key, text, "True or False")
    return text == "True"


def _one_of(*choices: str) -> Callable[[str, Value], str]:
    def read(key: str, value: Value) -> str:
        text = single(key, value, " or ".join(choices))
        if text not in choices:
            raise wrong(key, text, " or ".join(choices))
        return text
    return read


def _power_of_two(key: str, text: str, meaning: str, *, zero: bool = False) -> int:
    number = int(text) if text.isdecimal() else -1
    if number < 0 or number & (number - 1) or (number == 0 and not zero):
        raise wrong(key, text, meaning)
    return number


def _divisions(key: str, value: Value) -> tuple[int, ...]:
    """One number for all size classes, or `[64:8,256:4,>:1]`: by the size in MB; the first one also goes downwards."""
    if isinstance(value, str):
        return (_power_of_two(key, value, "a power of two or a list such as [64:8,256:4,>:1]"),) * SIZE_CLASSES
    divisions, following = [0] * SIZE_CLASSES, 0
    for position, (size, text) in enumerate(value):
        number = _power_of_two(key, text, f"0 or a power of two for size {size}", zero=True)
        if size == ">":
            divisions[following:] = [number] * (SIZE_CLASSES - following)
            continue
        megabytes = _power_of_two(key, size, "a list with sizes in MB that are powers of two")
        place = min(megabytes.bit_length() - 1, SIZE_CLASSES - 1)
        if position == 0:
            divisions[:place] = [number] * place
        divisions[place] = number
        following = place + 1
    return tuple(divisions)


_POWER = "a power of two"
_FIELDS: dict[str, tuple[str, Callable[[str, Value], object]]] = {
    "max_split_size_mb": ("max_split_bytes", _megabytes()),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _megabytes()),
    "garbage_collection_threshold": ("garbage_collection_threshold", _between(0, 1, inclusive=False)),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "expandable_segments": ("expandable_segments", _flag),
    "large_segment_size_mb": ("large_segment_bytes", _megabytes(MEDIUM_LIMIT // MIB + 1)),
    "per_process_memory_fraction": ("memory_fraction", _between(0, 1, inclusive=True)),
}
_IGNORED: dict[str, Callable[[str, Value], object]] = {
    "backend": _one_of("native", "cudaMallocAsync"),
    "release_lock_on_cudamalloc": _flag,
    "release_lock_on_hipmalloc": _flag,
    "graph_capture_record_stream_reuse": _flag,
    "throw_on_cudamalloc_oom": _flag,
    "pinned_use_cuda_host_register": _flag,
    "pinned_use_hip_host_register": _flag,
    "pinned_use_background_threads": _flag,
    "pinned_num_register_threads": lambda key, value: _power_of_two(key, single(key, value, _POWER), _POWER),
    "pinned_reserve_segment_size_mb": _megabytes(),
    "pinned_max_round_threshold_mb": _megabytes(),
    "pinned_max_cached_size_mb": _megabytes(),
    "pinned_free_catch_all": _flag,
}


def _shown(value: Value) -> str:
    return value if isinstance(value, str) else "[" + ",".join(f"{key}:{item}" for key, item in value) + "]"
