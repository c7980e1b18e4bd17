"""Names of groups."""

from collections.abc import Collection

from shoal.core.errors import require

RESERVED = ("overall", "total")
"""Names that no group may have: `accuracy.overall` and `violations.total` are of all groups."""

EVERYBODY = "all"
"""The name of the only group where clients have none; in an audit's keys it stands for the records of all groups."""


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


def require_group_names(names: Collection[str]) -> None:
    """Raise `InputError` unless ``names`` can be those of the groups of one federation; see `require_unambiguous`."""
    for name in names:
        require_group_name(name)
    require_unambiguous(names)


def require_unambiguous(names: Collection[str]) -> None:
    """Raise `InputError` where one of several groups is called ``all``.

    The key ``attacks.lira.all.auc`` of an audit would be of that group and of everybody.
    """
    require(
        len(names) < 2 or EVERYBODY not in names,
        f"'{EVERYBODY}' cannot be the name of one of several groups, since it stands for all of them in audits; "
        "give that group another name",
    )
