"""Whether a run may go on under a plan: what it keeps in the optimizer and the parameters must be what was saved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from memfit.apply import strategies
from memfit.core.errors import UsageError
from memfit.core.strategy import Choice

_KEPT = frozenset({"optimizer state", "parameter storage"})


def plan_hash(choices: Sequence[Choice]) -> str:
    """Sixteen hex digits of the strategies and their settings, in order."""
    text = json.dumps([[one.name, dict(one.settings)] for one in choices], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_choices(saved: Sequence[Choice], now: Sequence[Choice]) -> list[str]:
    """Notes on going on under other choices. Raises UsageError if they keep other states than those saved."""
    if plan_hash(saved) == plan_hash(now):
        return []
    if plan_hash(_keeping(saved)) != plan_hash(_keeping(now)):
        raise UsageError(f"the checkpoint was written under {_names(saved)}, which keeps other states than "
                         f"{_names(now)}", "resume under its own plan: leave out --budget and --plan")
    return [f"resumed under {_names(now)}; the checkpoint was written under {_names(saved)}"]


def _keeping(choices: Sequence[Choice]) -> list[Choice]:
    known = strategies()
    return [one for one in choices if one.name not in known or (
        known[one.name].takes & _KEPT and not getattr(known[one.name], "same_states", False))]


def _names(choices: Sequence[Choice]) -> str:
    return ", ".join(one.name for one in choices) or "no strategy"
