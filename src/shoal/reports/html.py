"""Pages that hold everything they show, in one style."""

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, page: Mapping[str, Any]) -> str:
    """The page that ``template``, a file of this package, makes of the values in ``page``; text in them is escaped."""
    environment = Environment(
        loader=PackageLoader("shoal.reports", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template(template).render(page)
