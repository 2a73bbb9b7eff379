"""How close a planned run is to the plain one, from closest to furthest."""

from __future__ import annotations

from enum import Enum

from memfit.core.errors import UsageError


class Fidelity(str, Enum):
    """Ordered: `BITWISE < REORDERED < RESAMPLED < REDUCED < ADAPTED`. See design: same bits, other rounding, other
    random draws, lower precision, another model or objective."""

    BITWISE = "bitwise"
    REORDERED = "reordered"
    RESAMPLED = "resampled"
    REDUCED = "reduced"
    ADAPTED = "adapted"

    @property
    def rank(self) -> int:
        return list(Fidelity).index(self)

    def allows(self, other: Fidelity) -> bool:
        """Whether a user who allows `self` accepts a strategy of fidelity `other`."""
        return other.rank <= self.rank

    @staticmethod
    def furthest(*several: Fidelity) -> Fidelity:
        """The fidelity of a mix: the furthest of its parts."""
        return max(several, key=lambda one: one.rank, default=Fidelity.BITWISE)

    @staticmethod
    def parse(text: str | Fidelity) -> Fidelity:
        try:
            return Fidelity(text)
        except ValueError:
            known = ", ".join(one.value for one in Fidelity)
            raise UsageError(f"unknown fidelity {text!r}", f"one of {known}") from None
