"""The card in this machine, as its driver tells. Needs `nvidia-ml-py`, or the driver's own `nvidia-smi`."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from typing import Any

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.units import GIB, MIB
from memfit.hardware.cards import to_device
from memfit.hardware.catalogue import catalogue, simple

_DRIVER = "the driver"
_SMI_FIELDS = ("name", "memory.total", "memory.free", "compute_cap", "pcie.link.gen.max", "pcie.link.width.max",
               "clocks.max.memory", "driver_version", "uuid")
_FORM = re.compile(r"\b(PCIe|SXM|NVL)\b")
_GUESSED_TFLOPS, _GUESSED_BANDWIDTH_GB = 10.0, 400.0  # a card that neither driver nor catalogue knows more of


@dataclass(frozen=True)
class Card:
    """What the driver says of one card. `bandwidth` in bytes per second, None if it cannot be worked out."""

    name: str
    total_bytes: int
    free_bytes: int
    compute_capability: tuple[int, int]
    pcie: tuple[int, int] | None
    bandwidth: float | None
    driver: str
    uuid: str = ""


def cards_here() -> tuple[Card, ...]:
    """The cards that this process may see, in the driver's order; empty where there is none."""
    return _chosen(_from_nvml() or _from_smi(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def cuda_device() -> Device:
    """`cuda`: the first card here, its rates by the catalogue. Raises UsageError where there is none."""
    cards = cards_here()
    if not cards:
        raise UsageError("there is no CUDA device here",
                         "use --device cpu, or a card's name, such as rtx3060 (memfit devices lists them)")
    return card_device(cards[0])


def card_device(card: Card) -> Device:
    """A driver's card as a target device: the memory is the driver's, what it does not tell is the catalogue's."""
    like = resembling(card)
    device = like or _unknown(card)
    sources = {**device.sources, "capacity_bytes": _DRIVER, "compute_capability": _DRIVER}
    if card.bandwidth is not None:
        sources["bandwidth"] = _DRIVER
    return replace(device, name="cuda", title=card.name, capacity_bytes=card.total_bytes,
                   compute_capability=card.compute_capability, bandwidth=card.bandwidth or device.bandwidth,
                   sources=sources)


def resembling(card: Card) -> Device | None:
    """The catalogue's card that a driver means by its name; of several sizes and forms, the nearest in memory."""
    name = _letters(card.name)
    found = [device for device in catalogue().values() if device.compute_capability == card.compute_capability
             and _letters(_model(device.title)) in name]

    def distance(device: Device) -> tuple[int, int, bool]:
        form = _FORM.search(device.title)
        another_form = form is not None and form[0].lower() not in card.name.lower()
        apart = round(abs(device.capacity_bytes - card.total_bytes) / GIB)
        return -len(_letters(_model(device.title))), apart, another_form

    return min(found, key=distance, default=None)


def _from_nvml() -> tuple[Card, ...]:
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        return tuple(_nvml_card(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count))
    except pynvml.NVMLError:
        return ()


def _nvml_card(pynvml: Any, handle: Any) -> Card:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        pcie = (pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle), pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    except pynvml.NVMLError:
        pcie = None
    try:
        clock_mhz = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM)
        bandwidth = 2 * clock_mhz * 1e6 * pynvml.nvmlDeviceGetMemoryBusWidth(handle) / 8
    except (pynvml.NVMLError, AttributeError):
        bandwidth = None
    return Card(_text(pynvml.nvmlDeviceGetName(handle)), int(memory.total), int(memory.free),
                tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)), pcie, bandwidth,
                _text(pynvml.nvmlSystemGetDriverVersion()), _text(pynvml.nvmlDeviceGetUUID(handle)))


def _from_smi() -> tuple[Card, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = [program, f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_smi(done.stdout) if done.returncode == 0 else ()


def parse_smi(text: str) -> tuple[Card, ...]:
    """The cards in the output of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`; no bandwidth there."""
    cards = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != len(_SMI_FIELDS) or not (parts[1].isdecimal() and parts[2].isdecimal()):
            continue
        major, _, minor = parts[3].partition(".")
        if not (major.isdecimal() and minor.isdecimal()):
            continue
        pcie = (int(parts[4]), int(parts[5])) if parts[4].isdecimal() and parts[5].isdecimal() else None
        cards.append(Card(parts[0], int(parts[1]) * MIB, int(parts[2]) * MIB, (int(major), int(minor)), pcie, None,
                          parts[7], parts[8]))
    return tuple(cards)


def _chosen(cards: tuple[Card, ...], visible: str | None) -> tuple[Card, ...]:
    """As CUDA reads CUDA_VISIBLE_DEVICES: numbers or beginnings of identifiers, up to the first that is none."""
    if visible is None:
        return cards
    chosen: list[Card] = []
    for word in (part.strip() for part in visible.split(",")):
        if word.isdecimal() and int(word) < len(cards):
            chosen.append(cards[int(word)])
            continue
        found = [card for card in cards if word.startswith("GPU-") and card.uuid.startswith(word)]
        if len(found) != 1:
            break
        chosen.append(found[0])
    return tuple(chosen)


def _unknown(card: Card) -> Device:
    fields = {"source": "not in the catalogue: a guess", "capacity": card.total_bytes, "multiprocessors": 40,
              "float32_tflops": _GUESSED_TFLOPS, "bandwidth_gb": _GUESSED_BANDWIDTH_GB,
              "compute_capability": list(card.compute_capability), "pcie": list(card.pcie or (4, 16)),
              "overhead_s": 5e-6}
    texts: dict[str, str] = dict.fromkeys(["user", "pcie", "link", "overhead"], "a guess")
    return to_device("cuda", fields, texts)


def _model(title: str) -> str:
    """`A100` for `A100 80GB PCIe`."""
    return _FORM.sub("", re.sub(r"\s\d+GB\b|\(.*\)", "", title))


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", simple(name))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
