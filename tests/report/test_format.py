import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.report import format as words
from memfit.report.settings import mix_text, names_text, settings_text


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (2**20 - 1, "1.0 MiB"), (2**20, "1.0 MiB"),
     (int(129.3 * 2**20), "129.3 MiB"), (2**30 - 1, "1.00 GiB"), (int(1.234 * 2**30), "1.23 GiB"),
     (-(2**20), "-1.0 MiB"), (None, "n/a")],
)  # fmt: skip
def test_sizes(size, shown):
    assert words.gib(size) == shown


@given(st.integers(0, 2**50))
def test_sizes_read_back_within_their_last_digit(size):
    value, unit = words.gib(size).split()
    scale = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
    step = {"B": 0, "KiB": 0.1, "MiB": 0.1, "GiB": 0.01}[unit]
    assert abs(float(value) * scale - size) <= step * scale * 0.501
    assert float(value) < 1024 or unit == "GiB"


@pytest.mark.parametrize(
    ("duration", "shown"),
    [(0, "0.000 s"), (41e-6, "41 us"), (0.0123, "12.3 ms"), (0.41, "0.410 s"), (1.234, "1.23 s"), (12.34, "12.3 s"),
     (59.97, "1 min 00 s"), (125, "2 min 05 s"), (3599.8, "1 h 00 min"), (3900, "1 h 05 min"), (math.nan, "n/a"),
     (None, "n/a")],
)  # fmt: skip
def test_durations(duration, shown):
    assert words.seconds(duration) == shown


def test_shares_ratios_and_differences():
    assert [words.percent(value) for value in (0, 0.004, 0.0996, 0.42, 1)] == ["0 %", "0.4 %", "10 %", "42 %", "100 %"]
    assert [words.ratio(value) for value in (1.19, 9.999, 123.4)] == ["1.19x", "10.0x", "123x"]
    assert [words.difference(value) for value in (0.0, 3.1e-7, 0.012)] == ["0", "3.1e-7", "0.012"]
    assert words.number(math.nan) == words.difference(math.nan) == "NaN"
    assert words.shape((16, 128)) == "16 x 128" and words.shape(()) == "scalar"


@pytest.mark.parametrize(
    ("names", "shown"),
    [([f"encoder.layer.{i}" for i in range(12)], "encoder.layer.0-11 (12 modules)"),
     ([f"h.{i}.mlp" for i in (0, 1, 2, 5, 7, 8)], "h.0-2,5,7-8.mlp (6 modules)"),
     (["layer1.0", "layer1.1", "layer2.0", "fc"], "layer1.0-1, layer2.0, fc (4 modules)"),
     (["denseblock1.0.conv", "denseblock1.1.conv", "head"], "denseblock1.0-1.conv, head (3 modules)"),
     (["a.b", "c.d", "e", "f", "g"], "a.b, c.d, e, f, ... (5 modules)"),
     (["head"], "head"), ([""], "(whole model)"), ([], "no modules")],
)  # fmt: skip
def test_module_names_are_joined(names, shown):
    assert names_text(names) == shown


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=1, unique=True))
def test_joined_names_lose_none(pairs):
    """Reading the ranges back gives the names that went in, whatever the order and the gaps."""
    names = [f"s{stage}.{block}" for stage, block in pairs]
    read = set()
    for group in names_text(names).split(" (")[0].split(", "):
        stage, numbers = group.split(".")
        for part in numbers.split(","):
            low, _, high = part.partition("-")
            read |= {f"{stage}.{n}" for n in range(int(low), int(high or low) + 1)}
    assert read == set(names)


def test_settings_and_mixes():
    assert settings_text({"count": 4, "dtype": "bfloat16", "fused": True, "rows": None}) == (
        "count=4, dtype=bfloat16, fused=yes, rows=none"
    )
    assert settings_text({"tensors": ["h.0", "h.1"], "counts": [1, 2]}) == "h.0-1 (2 tensors), counts=[1, 2]"
    assert mix_text([]) == "plain"
    assert mix_text([{"name": "micro-batches", "settings": {"count": 2}}, {"name": "lora"}]) == (
        "micro-batches [count=2] + lora"
    )
