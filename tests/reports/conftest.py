"""The tests of pages and figures read them as users do."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _figures(_rendered_figures):
    pass
