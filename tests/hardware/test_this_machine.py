"""Facts of this machine: its memory within a container, its processor, its card."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from memfit.core.errors import UsageError
from memfit.core.units import GIB, MIB
from memfit.hardware import (
    all_devices,
    capacity_host_bytes,
    cpu_device,
    cuda,
    find_device,
    free_device_bytes,
    free_host_bytes,
)
from memfit.hardware.host import container_groups, parse_vm_stat
from memfit.hardware.processor import parse_cpuinfo, processor


def test_memory_of_this_machine() -> None:
    assert 64 * MIB < free_host_bytes() <= capacity_host_bytes()
    assert cpu_device().capacity_bytes == capacity_host_bytes()
    assert free_device_bytes(find_device("rtx3060")) is None and free_device_bytes(cpu_device()) is not None


def test_limits_of_a_container_v2(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/work/job\n")
    for group, limit, used in (("", "max", 9 * GIB), ("work", str(4 * GIB), 3 * GIB), ("work/job", str(2 * GIB), GIB)):
        folder = tmp_path / "fs" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(limit + "\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {256 * MIB}\n")
    assert container_groups(tmp_path / "fs", own) == [(2 * GIB, GIB - 256 * MIB), (4 * GIB, 3 * GIB - 256 * MIB)]


def test_limits_of_a_container_v1_whose_path_is_not_there(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("9:name=systemd:/\n4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n")
    folder = tmp_path / "fs" / "memory"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{700 * MIB}\n")
    (folder / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {100 * MIB}\n")
    assert container_groups(tmp_path / "fs", own) == [(GIB, 600 * MIB)]
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert container_groups(tmp_path / "fs", own) == []


def test_what_vm_stat_says_of_a_mac() -> None:
    text = ("Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:      100.\nPages active:   7.\n"
            "Pages inactive:   50.\nPages speculative:  10.\n")
    assert parse_vm_stat(text) == 160 * 16384
    assert parse_vm_stat("") is None


def _cpuinfo(flags: str, hyperthreads: int = 2) -> str:
    return "\n\n".join(f"processor\t: {cpu}\nmodel name\t: A Processor @ 2.00GHz\ncpu MHz\t\t: 900.0\n"
                       f"physical id\t: 0\ncore id\t\t: {cpu // hyperthreads}\nflags\t\t: {flags}" for cpu in range(8))


def test_expected_rates_follow_cores_and_vector_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    wide, narrow = (parse_cpuinfo(_cpuinfo(flags), frozenset(range(8))) for flags in ("avx2 avx512f", "avx2"))
    assert (wide.cores, wide.threads, wide.ghz, wide.name) == (4, 8, 2.0, "A Processor @ 2.00GHz")
    assert wide.rates()["float32"] == 2 * narrow.rates()["float32"] == pytest.approx(4 * 2e9 * 64 * 0.7)
    assert narrow.rates()["bfloat16"] < narrow.rates()["float32"]
    matrix = parse_cpuinfo(_cpuinfo("avx512f amx_bf16"), frozenset(range(8)))
    assert matrix.rates()["bfloat16"] > 4 * matrix.rates()["float32"]
    assert parse_cpuinfo(_cpuinfo("avx2"), frozenset({0, 1})).cores == 1
    assert parse_cpuinfo("", frozenset({0})).rates()["float32"] > 1e9


def test_measured_rates_are_taken_where_they_are_of_this_processor(tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    expected = cpu_device()
    assert "expected" in expected.sources["rates"] and expected.rates["float32"] > 1e9
    here = processor()
    kept = {"processor": here.name, "threads": here.threads, "torch": metadata.version("torch") + "+cpu",
            "rates": {"float32": 123.0}, "bandwidth": 45.0, "overhead_s": 6.0}
    folder = tmp_path / "memfit"
    folder.mkdir()
    (folder / "rates-a.json").write_text("not json")
    (folder / "rates-b.json").write_text(json.dumps({**kept, "threads": here.threads + 1, "bandwidth": 1.0}))
    assert cpu_device() == expected
    (folder / "rates-c.json").write_text(json.dumps(kept))
    measured = cpu_device()
    assert measured.rates == {"float32": 123.0} and (measured.bandwidth, measured.overhead_s) == (45.0, 6.0)
    assert "measured" in measured.sources["rates"]


SMI = ("NVIDIA GeForce RTX 3060, 12288, 11000, 8.6, 4, 16, 7501, 550.54, GPU-aaaa\n"
       "NVIDIA A100-SXM4-40GB, 40960, 40000, 8.0, [N/A], 16, 1215, 550.54, GPU-bbbb\n")


def test_the_card_here_as_the_driver_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = cuda.parse_smi(SMI)
    monkeypatch.setattr(cuda, "_from_nvml", lambda: cards)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    device = find_device("cuda")
    assert device.name == "cuda" and device.kind == "cuda" and device.title == "NVIDIA GeForce RTX 3060"
    assert device.capacity_bytes == 12288 * MIB and device.rates["tf32"] == pytest.approx(12.7e12)
    assert find_device(None) == device and free_device_bytes(device) == 11000 * MIB
    assert [one.name for one in all_devices()][:2] == ["cpu", "cuda"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert find_device("cuda").title == "NVIDIA A100-SXM4-40GB" and find_device("cuda").rates["bfloat16"] > 3e14
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb")
    assert find_device("cuda").title == "NVIDIA A100-SXM4-40GB"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert find_device(None).name == "cpu"


@pytest.mark.parametrize(("name", "gib", "capability", "card"), [
    ("NVIDIA A100-PCIE-40GB", 39.4, (8, 0), "a100-40gb"), ("NVIDIA A100 80GB PCIe", 79.2, (8, 0), "a100-80gb-pcie"),
    ("NVIDIA H100 80GB HBM3", 79.1, (9, 0), "h100-sxm"), ("NVIDIA H100 PCIe", 79.1, (9, 0), "h100-pcie"),
    ("NVIDIA GeForce RTX 3060", 7.8, (8, 6), "rtx3060-8gb"), ("NVIDIA GeForce RTX 3060 Ti", 7.8, (8, 6), "rtx3060ti"),
    ("Tesla V100-SXM2-32GB", 31.7, (7, 0), "v100-32gb"), ("NVIDIA A10G", 22.0, (8, 6), "a10g"),
    ("NVIDIA RTX 6000 Ada Generation", 47.4, (8, 9), "rtx6000ada"), ("NVIDIA H200", 139.8, (9, 0), "h200"),
    ("Some Other Card", 8.0, (8, 6), None)])
def test_a_drivers_name_leads_to_its_card(name: str, gib: float, capability: tuple[int, int], card: str | None) -> None:
    told = cuda.Card(name, int(gib * GIB), 0, capability, None, None, "550")
    found = cuda.resembling(told)
    assert (found and found.name) == card
    assert cuda.card_device(told).capacity_bytes == int(gib * GIB)


def test_without_a_card_cuda_is_refused_with_what_to_do_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_from_nvml", lambda: ())
    monkeypatch.setattr(cuda, "_from_smi", lambda: ())
    with pytest.raises(UsageError) as caught:
        find_device("cuda")
    assert caught.value.code == 2 and "memfit devices" in caught.value.advice
    assert find_device(None).name == "cpu"
