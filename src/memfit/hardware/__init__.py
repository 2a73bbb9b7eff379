"""The catalogue of cards and facts of this machine. No torch."""

from __future__ import annotations

from memfit.core.device import Device
from memfit.hardware.catalogue import catalogue, find_card
from memfit.hardware.cpu import cpu_device
from memfit.hardware.cuda import card_device, cards_here, cuda_device
from memfit.hardware.host import capacity_host_bytes, container_limit_bytes, free_host_bytes

__all__ = ["all_devices", "capacity_host_bytes", "cards_here", "catalogue", "container_limit_bytes", "cpu_device",
           "cuda_device", "find_device", "free_device_bytes", "free_host_bytes"]


def find_device(name: str | None = None) -> Device:
    """`cpu`, `cuda` (the card here), a card of the catalogue or of a user's file; None: the card here, else the CPU.

    Raises UsageError for an unknown name (with the nearest ones), and for `cuda` where there is none.
    """
    wanted = name.strip().lower() if name is not None else None
    if wanted == "cpu":
        return cpu_device()
    if wanted in ("cuda", "cuda:0"):
        return cuda_device()
    if name is not None:
        return find_card(name)
    cards = cards_here()
    return card_device(cards[0]) if cards else cpu_device()


def all_devices() -> list[Device]:
    """This machine's devices, then the catalogue in its order."""
    return [cpu_device(), *map(card_device, cards_here()[:1]), *catalogue().values()]


def free_device_bytes(device: Device) -> int | None:
    """What is free now on a device of this machine (`cpu`, `cuda`); None for one that is not here."""
    if device.kind == "cpu":
        return free_host_bytes()
    cards = cards_here() if device.name == "cuda" else ()
    return cards[0].free_bytes if cards else None
