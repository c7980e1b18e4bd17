"""What the tests of commands share."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _logging_is_left_as_it_was():
    handlers = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = handlers
