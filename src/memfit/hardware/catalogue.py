"""The catalogue of cards: those that come with memfit, and the user's own from TOML files."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.hardware.cards import to_device
from memfit.hardware.tables import read_toml

USER_FILE = "MEMFIT_DEVICES"
_OWN_FILE = Path(__file__).with_name("cards.toml")
_SHAPE = 'a file of cards looks like: [cards.office]  like = "rtx3060"  capacity = "10GiB"'

Fields = dict[str, Any]


def catalogue() -> dict[str, Device]:
    """Every card by its name: memfit's, those of hosted notebooks, then the user's (environment: MEMFIT_DEVICES)."""
    devices = {name: _device(name, fields) for name, fields in _own_cards().items()}
    for name, hosted in _own()["hosted"].items():
        devices[name] = replace(devices[hosted["card"]], name=name, title=hosted["title"])
    user_file = os.environ.get(USER_FILE)
    return {**devices, **(cards_of(Path(user_file)) if user_file else {})}


def cards_of(path: Path) -> dict[str, Device]:
    """The cards in a user's TOML file: `[cards.NAME]` with the fields of `cards.toml`, `capacity = "10GiB"`, and
    `like = "rtx3060"` for what is not given. Raises UsageError for a file or a card that is not in order."""
    cards = read_toml(path).get("cards")
    if not isinstance(cards, dict) or not cards or not all(isinstance(one, dict) for one in cards.values()):
        raise UsageError(f"{path} has no cards", _SHAPE)
    return {simple(name): _device(simple(name), _resembling(fields, str(path))) for name, fields in cards.items()}


def find_card(name: str) -> Device:
    """A card by name, other name (`h100`), as a driver writes it (`NVIDIA GeForce RTX 3060`), or from `FILE.toml`
    (`FILE.toml:NAME` where it has several). Raises UsageError, with the nearest names, for an unknown one."""
    if ".toml" in name:
        return _from_file(name)
    devices, wanted = catalogue(), simple(name)
    wanted = _own()["aliases"].get(wanted, wanted)
    if wanted in devices:
        return devices[wanted]
    alike = [one for one in devices if one.replace("-", "") == wanted.replace("-", "")]
    if alike:
        return devices[alike[0]]
    raise UsageError(f"there is no device {name!r}", _nearest(wanted, [*devices, *_own()["aliases"], "cpu", "cuda"]))


def simple(name: str) -> str:
    """`NVIDIA GeForce RTX 3060 Ti` and `rtx_3060_ti` as `rtx3060ti`; the dashes of the catalogue's names stay."""
    text = name.strip().lower()
    for maker in ("nvidia", "geforce", "tesla"):
        text = text.replace(maker, "")
    return "".join(text.replace("_", " ").split())


def _from_file(name: str) -> Device:
    file, _, wanted = name.partition(".toml")
    path, wanted = Path(file + ".toml"), simple(wanted.lstrip(":"))
    cards = cards_of(path)
    if not wanted and len(cards) == 1:
        return next(iter(cards.values()))
    if not wanted:
        raise UsageError(f"{path} has {len(cards)} cards", f"choose one: {path}:{next(iter(cards))}")
    if wanted not in cards:
        raise UsageError(f"{path} has no card {wanted!r}", _nearest(wanted, list(cards)))
    return cards[wanted]


def _nearest(wanted: str, names: list[str]) -> str:
    inside = sorted((name for name in names if len(wanted) > 1 and wanted in name), key=lambda one: one.find(wanted))
    near = list(dict.fromkeys([*inside[:4], *difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)]))[:4]
    listing = "memfit devices lists all"
    return f"did you mean {', '.join(near)}? {listing}" if near else listing


def _resembling(fields: Fields, path: str) -> Fields:
    """The user's fields over those of the card that it is `like`."""
    base: Mapping[str, Any] = {}
    if "like" in fields:
        own = _own_cards()
        like = _own()["aliases"].get(simple(str(fields["like"])), simple(str(fields["like"])))
        if like not in own:
            raise UsageError(f"{path}: there is no card {fields['like']!r} to be like", _nearest(like, list(own)))
        base = own[like]
    if "capacity" in fields or "label_gb" in fields:
        base = {key: value for key, value in base.items() if key not in ("usable_mib", "label_gb")}
    return {**_own()["defaults"], **base, "source": path, **fields}


def _device(name: str, fields: Fields) -> Device:
    return to_device(name, fields, {**_own()["sources"], "user": str(fields["source"])})


@lru_cache(maxsize=1)
def _own() -> dict[str, Any]:
    return read_toml(_OWN_FILE)


@lru_cache(maxsize=1)
def _own_cards() -> dict[str, Fields]:
    """Each card's fields, with its family's and the defaults where it has none of its own."""
    own = _own()
    cards: dict[str, Fields] = {}
    for family in own["families"]:
        shared = {key: value for key, value in family.items() if key not in ("cards", "title")}
        for card in family["cards"]:
            cards[card["name"]] = {**own["defaults"], **shared, **card}
    return cards
