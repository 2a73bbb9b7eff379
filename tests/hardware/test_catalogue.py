"""The catalogue is complete and believable; a user's own cards; unknown names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.units import GIB
from memfit.hardware import all_devices, catalogue, find_device
from memfit.hardware.tables import read_toml

CARDS = catalogue()
OWN = read_toml(Path(sys.modules["memfit.hardware.catalogue"].__file__ or "").with_name("cards.toml"))
LABELS = {card["name"]: card["label_gb"] for family in OWN["families"] for card in family["cards"]}


def test_there_are_cards_of_every_kind() -> None:
    assert len(LABELS) >= 42
    assert {"rtx3060", "rtx3060-8gb", "rtx4090", "rtx5090", "rtxa6000", "l4", "t4", "p100", "v100-32gb", "a100-40gb",
            "a100-80gb", "h100-sxm", "h200", "b200", "gh200", "jetson-nano", "jetson-agx-orin", "colab-t4",
            "kaggle-p100"} <= set(CARDS)
    assert len({simple.lower() for simple in CARDS}) == len(CARDS)


@pytest.mark.parametrize("device", CARDS.values(), ids=CARDS)
def test_every_card_is_complete_and_its_numbers_hang_together(device: Device) -> None:
    assert device.kind == "cuda" and device.title and device.name == device.name.lower() and " " not in device.name
    assert device.link and device.overhead_s > 0 and device.multiprocessors and device.compute_capability
    assert {"capacity_bytes", "rates", "bandwidth", "link", "compute_capability", "multiprocessors",
            "overhead_s"} <= set(device.sources) and all(device.sources.values())
    assert 0.2e12 < device.rates["float32"] < 200e12
    assert 2 * device.link <= device.bandwidth * 1.01
    assert device.rates["float16"] >= device.rates["float32"]
    assert ("bfloat16" in device.rates) == (device.compute_capability >= (8, 0))
    assert ("float8" in device.rates) == (device.compute_capability >= (8, 9))
    per_cycle = 2 * _cores(device.compute_capability) * device.multiprocessors
    assert 0.5e9 < device.rates["float32"] / per_cycle < 3e9  # the clock that the peak means, in Hz


def _cores(capability: tuple[int, int]) -> int:
    """Float32 cores of one multiprocessor."""
    return 64 if capability in ((6, 0), (7, 0), (7, 2), (7, 5), (8, 0)) else 128


@pytest.mark.parametrize("name", LABELS)
def test_usable_memory_is_not_the_label_but_near_it(name: str) -> None:
    capacity = CARDS[name].capacity_bytes
    assert capacity < LABELS[name] * 1e9 * 1.08
    assert 0.88 * LABELS[name] * GIB < capacity < LABELS[name] * GIB or name == "b200"


def test_published_figures_of_a_few_cards() -> None:
    rtx3060, a100 = CARDS["rtx3060"], CARDS["a100-80gb"]
    assert rtx3060.compute_capability == (8, 6) and rtx3060.multiprocessors == 28 and rtx3060.bandwidth == 360e9
    assert 11.7 * GIB < rtx3060.capacity_bytes < 11.8 * GIB
    assert a100.rates["bfloat16"] == pytest.approx(312e12) and a100.rates["tf32"] == pytest.approx(156e12)
    assert CARDS["h100-sxm"].rates["float16"] == pytest.approx(989e12, rel=0.002)
    assert CARDS["rtx4090"].rates["float16"] == pytest.approx(165.2e12)
    assert CARDS["kaggle-t4"].capacity_bytes == CARDS["t4"].capacity_bytes


@pytest.mark.parametrize(("written", "meant"), [
    ("rtx3060", "rtx3060"), ("RTX 3060", "rtx3060"), ("NVIDIA GeForce RTX 3060 Ti", "rtx3060ti"), ("h100", "h100-sxm"),
    ("RTX 3060 8GB", "rtx3060-8gb"), ("a6000", "rtxa6000"), ("Colab-T4", "colab-t4"), (" rtx_4090 ", "rtx4090")])
def test_a_card_is_found_as_people_write_it(written: str, meant: str) -> None:
    assert find_device(written).name == meant


@pytest.mark.parametrize(("written", "near"), [("rtx3061", "rtx3060"), ("a100", "a100-40gb"), ("rtx409", "rtx4090"),
                                               ("cpus", "cpu"), ("orin", "jetson-orin-nx")])
def test_an_unknown_card_names_the_nearest(written: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_device(written)
    assert written in caught.value.message and near in caught.value.advice and caught.value.code == 2


def test_a_name_like_no_other_still_says_where_the_names_are() -> None:
    with pytest.raises(UsageError) as caught:
        find_device("???")
    assert "memfit devices" in caught.value.advice


OFFICE = """
[cards."Office Card"]
like = "rtx3060"
capacity = "10 GiB"

[cards.bench]
title = "A card of my own"
label_gb = 24
float32_tflops = 30
bandwidth_gb = 700
compute_capability = [8, 6]
multiprocessors = 70
tflops = { float16 = 60.0 }
"""


def test_users_cards_from_a_file_and_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cards.toml"
    path.write_text(OFFICE)
    office = find_device(f"{path}:officecard")
    assert office.capacity_bytes == 10 * GIB and office.bandwidth == CARDS["rtx3060"].bandwidth
    assert str(path) in office.sources["capacity_bytes"]
    bench = find_device(f"{path}:bench")
    assert bench.rates == {"float32": 30e12, "float16": 60e12} and bench.capacity_bytes < 24 * GIB
    with pytest.raises(UsageError, match="2 cards"):
        find_device(str(path))
    monkeypatch.setenv("MEMFIT_DEVICES", str(path))
    assert find_device("bench").title == "A card of my own"
    assert "bench" in {one.name for one in all_devices()}


@pytest.mark.parametrize(("text", "said"), [
    ("[cards.x]\nlike = 'rtx3060'\nmemory_size = 3", "memory_size"), ("[cards.x]\nlike = 'rtx9999'", "rtx9999"),
    ("[cards.x]\nlike = 'rtx3060'\ncapacity = '10G'", "10G"), ("[cards.x]\nlike = 'rtx3060'\nbandwidth_gb = -1", "-1"),
    ("[cards.x]\ncapacity = '10GiB'", "float32_tflops"), ("[cards.x]\nlike = 'rtx3060'\npcie = [9, 16]", "pcie"),
    ("[cards.x]\nlike = 'rtx3060'\ncompute_capability = 8.6", "compute_capability"),
    ("[cards.x]\nlike = 'rtx3060'\ntflops = { float16 = 'fast' }", "tflops"), ("x = 1", "no cards"),
    ("cards = [", "TOML")])
def test_a_users_card_that_is_not_in_order_is_one_clear_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        find_device(str(path))
    assert said in caught.value.message and "\n" not in caught.value.message


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="cannot read"):
        find_device("nowhere.toml")


def test_neither_room_imports_torch() -> None:
    source = ("import sys, memfit.hardware, memfit.launch, memfit.launch.worker; memfit.hardware.all_devices(); "
              "sys.exit('torch' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0
