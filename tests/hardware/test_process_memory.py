"""What a process holds beside the allocator: against published figures, and by card and version."""

from __future__ import annotations

import pytest

from memfit.core.units import GIB, MIB
from memfit.hardware import find_device
from memfit.hardware.process_memory import SOURCES, Span, local_memory_bytes, overhead_range, process_memory

PUBLISHED = [  # card, torch, the driver's bytes of a process that has done next to nothing, where it was read
    ("v100-16gb", "1.10.0+cu113", 1343 * MIB, "Hugging Face documentation, efficient training on one GPU"),
    ("rtx3090", "2.0.1+cu117", 300 * MIB, "pytorch#107667, a maintainer: about 300"),
    ("rtx3090", "2.0.1+cu117", 400 * MIB, "pytorch#109888, a maintainer: about 400"),
    ("rtx2080ti", "1.6.0+cu101", 996 * MIB, "pytorch#49877, less a tensor of 39 MiB"),
    ("a100-80gb", "2.1.1+cu121", int(0.47 * GIB), "stas00/ml-engineering, training/performance"),
]


@pytest.mark.parametrize(("card", "version", "published", "where"), PUBLISHED, ids=[row[3][:20] for row in PUBLISHED])
def test_published_figures_lie_inside(card: str, version: str, published: int, where: str) -> None:
    low, typical, high = overhead_range(find_device(card), version)
    assert low <= published <= high and low < typical < high
    assert abs(typical - published) < 0.5 * published


def test_local_memory_is_that_of_every_resident_thread() -> None:
    assert local_memory_bytes(find_device("a100-40gb")) == 108 * 2048 * 1024
    assert local_memory_bytes(find_device("rtx3060")) == 28 * 1536 * 1024
    assert local_memory_bytes(find_device("t4")) == 40 * 1024 * 1024


def test_parts_add_up_and_grow_as_they_should() -> None:
    small, large = (process_memory(find_device(name), "2.6.0+cu124") for name in ("rtx3060", "rtx3090"))
    assert small.total == Span(*(a + b for a, b in zip(small.context, small.modules, strict=True)))
    assert all(a < b for a, b in zip(small.context, large.context, strict=True)) and small.modules == large.modules
    card = find_device("a100-40gb")
    plain, images = overhead_range(card, "2.6.0"), overhead_range(card, "2.6.0", convolutions=True)
    old, unknown = overhead_range(card, "1.10.2+cu113"), overhead_range(card, "2.x")
    assert plain[:2] == images[:2] and plain.high_bytes < images.high_bytes < old.high_bytes
    assert unknown.low_bytes <= plain.low_bytes and unknown.high_bytes > plain.high_bytes  # lazily or not, safe either way
    assert plain.typical_bytes < unknown.typical_bytes < old.typical_bytes
    assert overhead_range(card) == plain and overhead_range(card, "~1.10") == old


def test_every_card_of_the_catalogue_has_a_figure_that_it_can_hold() -> None:
    from memfit.hardware import catalogue

    for device in catalogue().values():
        span = overhead_range(device)
        assert 100 * MIB < span.low_bytes < span.typical_bytes < span.high_bytes < 1.6 * GIB
    assert all(len(source) > 30 for source in SOURCES.values())


def test_a_processor_has_no_context() -> None:
    with pytest.raises(ValueError, match="no CUDA context"):
        overhead_range(find_device("cpu"))


def test_what_errs_independently_adds_up_as_the_sides_of_a_right_angle() -> None:
    assert Span(97, 100, 104).beside(Span(6, 10, 13)) == Span(105, 110, 115)
    assert Span(5, 5, 5).beside(Span(1, 2, 3)) == Span(6, 7, 8)
