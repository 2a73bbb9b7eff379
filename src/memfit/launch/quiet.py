"""Lines that packages log while they are imported, and that nobody who runs a command can do anything about."""

from __future__ import annotations

import logging

_LOGGED = {"torch.utils._pytree": "is an Enum subclass and is now natively supported"}  # torchao, which transformers imports


def quiet_imports() -> None:
    """From now on those lines are not logged in this process; all others of the same loggers are."""
    for name, text in _LOGGED.items():
        logging.getLogger(name).addFilter(_Without(text))


class _Without(logging.Filter):
    """Drops records whose message has this text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def filter(self, record: logging.LogRecord) -> bool:
        return self._text not in str(record.msg)

    def __eq__(self, other: object) -> bool:  # a filter that is there already is not added again
        return isinstance(other, _Without) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)
