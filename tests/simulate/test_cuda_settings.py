"""Reading PYTORCH_ALLOC_CONF strings: what PyTorch accepts, what it refuses, and what the sizes become."""

from __future__ import annotations

import pytest

from memfit.core.errors import UsageError
from memfit.core.units import GIB, MIB
from memfit.simulate.cuda_settings import SIZE_CLASSES, UNLIMITED, AllocatorSettings


def test_all_keys_together() -> None:
    settings = AllocatorSettings.parse(
        "max_split_size_mb:40, max_non_split_rounding_mb:30, garbage_collection_threshold:0.5, "
        "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1], expandable_segments:True, "
        "per_process_memory_fraction:0.9, pinned_num_register_threads:4, backend:native,")
    assert settings.max_split_bytes == 40 * MIB
    assert settings.max_non_split_rounding_bytes == 30 * MIB
    assert (settings.garbage_collection_threshold, settings.memory_fraction) == (0.5, 0.9)
    assert settings.expandable_segments
    # 1 to 64 MiB take the first value, 128, 256, 512 MiB and 1 GiB their own, the rest that of ">".
    assert settings.roundup_power2_divisions == (8,) * 7 + (2, 4, 2, 4, 1, 1, 1, 1, 1)
    assert len(settings.notes) == 2


def test_defaults_and_the_newer_variable_first() -> None:
    assert AllocatorSettings.from_environment({}) == AllocatorSettings.parse("") == AllocatorSettings()
    both = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:40", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert AllocatorSettings.from_environment(both) == AllocatorSettings(expandable_segments=True)
    with pytest.raises(UsageError, match=r"PYTORCH_CUDA_ALLOC_CONF: .*max_split_size_mb.*'x'"):
        AllocatorSettings.from_environment({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:x"})


def test_sizes_that_are_too_large_for_a_machine_word() -> None:
    assert AllocatorSettings.parse("max_split_size_mb:99999999999999999999").max_split_bytes == UNLIMITED


@pytest.mark.parametrize(("text", "key", "value"), [
    ("max_split_size_mb:10", "max_split_size_mb", "'10'"),
    ("max_split_size_mb:abc", "max_split_size_mb", "'abc'"),
    ("max_split_size_mb:200.5", "max_split_size_mb", "'200.5'"),
    ("max_split_size_mb:-1", "max_split_size_mb", "'-1'"),
    ("max_split_size_mb:[20:1]", "max_split_size_mb", ""),
    ("max_split_size_mb", "max_split_size_mb", ""),
    ("max_split_size_mb:", "max_split_size_mb", ""),
    ("max_split_size_mb=128", "max_split_size_mb=128", ""),
    ("large_segment_size_mb:64,max_split_size_mb:40", "max_split_size_mb", "'40'"),
    ("max_split_size_mb:20,large_segment_size_mb:64", "max_split_size_mb", "'20'"),
    ("large_segment_size_mb:64,max_non_split_rounding_mb:20", "max_non_split_rounding_mb", "'20'"),
    ("large_segment_size_mb:10", "large_segment_size_mb", "'10'"),
    ("expandable_segments:true", "expandable_segments", "'true'"),
    ("garbage_collection_threshold:0", "garbage_collection_threshold", "'0'"),
    ("garbage_collection_threshold:nan", "garbage_collection_threshold", "'nan'"),
    ("per_process_memory_fraction:1.5", "per_process_memory_fraction", "'1.5'"),
    ("roundup_power2_divisions:3", "roundup_power2_divisions", "'3'"),
    ("roundup_power2_divisions:[300:8]", "roundup_power2_divisions", "'300'"),
    ("roundup_power2_divisions:[64:8,256:4", "roundup_power2_divisions", ""),
    ("backend:other", "backend", "'other'"),
    ("release_lock_on_cudamalloc:yes", "release_lock_on_cudamalloc", "'yes'"),
    ("colour:red", "colour", "'red'"),
    (",max_split_size_mb:20", ",", ""),
    ("max_split_size_mb:20 expandable_segments:True", "max_split_size_mb", "20expandable_segments"),
])
def test_what_does_not_parse_is_named(text: str, key: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        AllocatorSettings.parse(text)
    assert key in caught.value.message and value in caught.value.message
    assert "\n" not in caught.value.message and caught.value.advice


def test_rounding_of_requests() -> None:
    plain, eighths = AllocatorSettings(), AllocatorSettings(roundup_power2_divisions=(8,) * SIZE_CLASSES)
    assert [plain.rounded(size) for size in (1, 511, 512, 513, 1025)] == [512, 512, 512, 1024, 1536]
    assert eighths.rounded(4097) == 4608  # above 512 x 8, in eighths of 4096
    assert eighths.rounded(4096) == 4096
    assert eighths.rounded(1200) == 1536  # too small for eighths
    assert eighths.rounded(9 * MIB) == 9 * MIB
    assert eighths.rounded(9 * MIB + 1) == 10 * MIB
    by_class = AllocatorSettings.parse("roundup_power2_divisions:[1:0,32:2,>:0]")
    assert by_class.rounded(40 * MIB) == 48 * MIB
    assert by_class.rounded(31 * MIB + 1) == 31 * MIB + 512
    assert by_class.rounded(65 * MIB + 1) == 65 * MIB + 512
    last = AllocatorSettings.parse("roundup_power2_divisions:[32768:2]")
    assert last.rounded(70 * GIB) == 96 * GIB


def test_segment_sizes() -> None:
    settings = AllocatorSettings()
    assert settings.segment_bytes(MIB) == 2 * MIB
    assert settings.segment_bytes(MIB + 512) == 20 * MIB
    assert settings.segment_bytes(10 * MIB - 512) == 20 * MIB
    assert settings.segment_bytes(10 * MIB) == 10 * MIB
    assert settings.segment_bytes(11 * MIB) == 12 * MIB
    assert AllocatorSettings.parse("large_segment_size_mb:64").segment_bytes(2 * MIB) == 64 * MIB
