"""Names of groups."""

from shoal.core.errors import require

RESERVED = ("overall", "total")
"""Names that no group may have: `accuracy.overall` and `violations.total` are of all groups."""


def require_group_name(name: object) -> None:
    """Raise `InputError` unless ``name`` can stand in summary keys, tables and figures."""
    require(isinstance(name, str), f"a group's name must be a string; got {name!r}")
    assert isinstance(name, str)
    require(
        bool(name) and name not in RESERVED,
        f"'{name}' cannot be a group's name; {' and '.join(RESERVED)} stand for all groups in summary keys",
    )
    require(
        name.isprintable() and not set(name) & set("/\\"),
        f"{name!r} cannot be a group's name; it must be printable, without '/' and '\\'",
    )
