"""How much a plan may have away from the device: on the host beside a card, and on disk."""

from __future__ import annotations

from collections.abc import Mapping

from memfit.core.units import MIB
from memfit.hardware.disks import free_disk_bytes, offload_folder
from memfit.report.format import gib

_OPTION = {"host": "--host-budget", "disk": "--disk-budget"}


def room(host_bytes: int | None = None, disk_bytes: int | None = None) -> dict[str, int]:
    """Bytes by place. Of the host there is no limit where none is given; of the disk it is what is free, less a margin."""
    disk = free_disk_bytes(offload_folder()) if disk_bytes is None else disk_bytes
    return {"disk": disk} if host_bytes is None else {"disk": disk, "host": host_bytes}


def why_too_much(away: Mapping[str, int], limits: Mapping[str, int]) -> str | None:
    """One line where a step needs more in some place than it may have."""
    for place, nbytes in sorted(away.items()):
        limit = limits.get(place)
        if limit is not None and nbytes > limit:
            return f"needs {gib(nbytes)} on {place}, which may take {gib(limit)} ({_OPTION[place]})"
    return None


def away_notes(away: Mapping[str, int]) -> list[str]:
    """A line on each place that a plan moves more than a little to."""
    where = {"host": "in the host's memory", "disk": "in mapped files on disk"}
    return [f"{gib(nbytes)} are kept {where[place]}" for place, nbytes in sorted(away.items()) if nbytes >= MIB]
