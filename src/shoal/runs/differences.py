"""In what two configurations differ that changes what a run computes."""

from collections.abc import Iterator, Mapping
from typing import Any

from shoal.config.schema import Config


def decisive_settings(config: Config) -> dict[str, Any]:
    """A configuration's values by dotted key, but for the keys that change no result."""
    table = config.table()
    del table["engine"]["threads"], table["engine"]["personal_models"], table["checkpoint"]
    table.get("record", {}).pop("max_megabytes", None)
    return dict(_flat(table, ""))


def differences(before: Config, now: Config) -> dict[str, tuple[Any, Any]]:
    """The keys in which two configurations differ, with both values; None where one of them has no value."""
    old, new = decisive_settings(before), decisive_settings(now)
    return {key: (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)}


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
