"""What is not logged, and that nothing else is lost."""

from __future__ import annotations

import logging

import pytest

from memfit.launch import quiet_imports


def test_only_the_line_of_an_import_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("torch.utils._pytree")
    before = list(logger.filters)
    try:
        quiet_imports(), quiet_imports()
        assert len(logger.filters) == len(before) + (0 if before else 1)
        logger.warning("%s is an Enum subclass and is now natively supported by torch.compile", "a kind")
        logger.warning("another line of %s", "torch")
        assert [record.getMessage() for record in caplog.records] == ["another line of torch"]
    finally:
        logger.filters[:] = before
