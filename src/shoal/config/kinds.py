"""Classes by name: a shipped class has a short name, and a user's own class has the name ``module:Name``."""

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from shoal.algorithms import ALGORITHMS
from shoal.attacks import MEMBERSHIP_ATTACKS, MembershipAttack
from shoal.core.entry_points import installed_names
from shoal.core.errors import InputError, quote, require, suggest
from shoal.core.randomness import Stream
from shoal.core.settings import one_of, spell_value
from shoal.data import Federation, LabelledDataset, Preferences
from shoal.data.partition import PartitionIndices
from shoal.data.sources.catalog import SOURCES
from shoal.defenses import Defense
from shoal.engine import Algorithm, Forgetting, MaliciousClients
from shoal.forgetting import METHODS
from shoal.models import Model
from shoal.simulation.simulation import RoundAttack, Simulation


@runtime_checkable
class RoundAttackSection(Protocol):
    """The configuration table of an attack during training, such as `shoal.property.PropertyAttackSection`.

    The argument ``config`` of each method is a `shoal.Config`.
    """

    attack: RoundAttack

    @staticmethod
    def from_simulation(simulation: Simulation) -> "RoundAttackSection | None":
        """Return the table of a simulation's attack, or None if a file cannot describe the attack."""
        ...

    def check(self, config: Any) -> None:  # noqa: ANN401 - its schema has a field of this type
        """Raise `InputError` if another table contradicts this table."""
        ...

    def draw(self, config: Any, dataset: LabelledDataset, stream: Stream) -> PartitionIndices:  # noqa: ANN401
        """Draw the partition of the examples across clients."""
        ...

    def federation(
        self,
        config: Any,  # noqa: ANN401
        dataset: LabelledDataset,
        indices: PartitionIndices,
        preferences: Preferences,
        stream: Stream,
    ) -> Federation:
        """Build the federation from the partition that `draw` returned."""
        ...

    def malicious_clients(self, model: Model, federation: Federation) -> MaliciousClients | None:
        """Return the attack's malicious clients, or None if the attack only observes."""
        ...


@dataclass(frozen=True)
class Kind:
    """A set of exchangeable settings classes, such as all algorithms; a file chooses a class by name."""

    title: str  # in sentences, with its article
    protocol: type  # of the classes
    group: str = ""  # of entry points in installed packages
    shipped: Mapping[str, type] = field(default_factory=dict)  # by name
    default: str = ""  # the class of a table without a name, as module:Name, loaded when needed

    @property
    def added(self) -> dict[str, str]:
        """The names that installed packages add, each with its ``module:Name``."""
        return installed_names(self.group, self.shipped)

    def unnamed(self, where: str) -> type:
        """Load the default class for a table without a name."""
        require(bool(self.default), f"'{where}' is missing; name a class")
        return load_code(self.default, where)

    def named(self, name: object, where: str) -> type:
        """Return the class called ``name``, the value of the key ``where``.

        Raises:
            InputError: no class of this kind is called ``name``.
        """
        added = self.added
        if isinstance(name, str) and name in self.shipped:
            return self.shipped[name]
        if not isinstance(name, str) or (":" not in name and name not in added):
            names = [*self.shipped, *added]
            close = suggest(str(name), names)
            if close.startswith("did"):
                raise InputError(f"'{where}' is unknown; {close} (got {spell_value(name)})")
            raise InputError(f"'{where}' must be {one_of([*names, 'module:Name'])} (got {spell_value(name)})")
        cls = load_code(added.get(name, name), where)
        require(
            isinstance(cls, type) and is_dataclass(cls),
            f"'{where}' must name a class with the decorator @settings (got '{name}', {cls!r})",
        )
        members = {*dir(cls), *(field.name for field in fields(cls))}
        missing = [member for member in vars(self.protocol) if not member.startswith("_") and member not in members]
        require(
            not missing,
            f"'{where}' must name {self.title} (got '{name}', which lacks '{missing[0] if missing else ''}')",
        )
        origin = name_of(cls)
        # The name in config.toml must lead to the same class.
        require(
            name in (origin, added.get(origin)),
            f"'{where}' must be '{origin}', where the class is defined (got '{name}')",
        )
        return cls


KINDS = {
    kind.protocol: kind
    for kind in (
        Kind("an algorithm", Algorithm, "shoal.algorithms", ALGORITHMS),
        Kind("a membership-inference attack", MembershipAttack, "shoal.attacks", MEMBERSHIP_ATTACKS),
        Kind("a defence", Defense, "shoal.defenses"),
        Kind("a forgetting method", Forgetting, shipped=METHODS),
        Kind("an attack on rounds", RoundAttackSection, default="shoal.property.scenario:PropertyAttackSection"),
    )
}
"""All kinds, by the protocol in the annotation of a field."""


def kind_of(hint: object) -> Kind | None:
    """Return the `Kind` of a field with this annotation, or None if the field holds a plain value."""
    return KINDS.get(hint) if isinstance(hint, type) else None


def name_of(cls: type) -> str:
    """Return the name of a class in configuration files.

    >>> from shoal.algorithms import IFCAMIR
    >>> name_of(IFCAMIR)
    'ifca-mir'
    """
    if any(cls in kind.shipped.values() for kind in KINDS.values()):
        return getattr(cls, "name")  # noqa: B009
    origin = f"{cls.__module__}:{cls.__qualname__}"
    return next((name for kind in KINDS.values() for name, code in kind.added.items() if code == origin), origin)


def own_source(source: str) -> str | None:
    """Return a data source's ``module:Name``, or None for a shipped source."""
    return source if ":" in source else installed_names("shoal.sources", SOURCES).get(source)


def title_of(algorithm: Algorithm) -> str:
    """Return an algorithm's display name: the class's ``title``, or else the class name."""
    return str(vars(type(algorithm)).get("title", type(algorithm).__name__))


def algorithm_title(name: str) -> str:
    """Return an algorithm's display name from its name in a file.

    >>> algorithm_title("ifca-mir"), algorithm_title("mine:Sticky")
    ('IFCA-MIR', 'Sticky')
    """
    return ALGORITHMS[name].title if name in ALGORITHMS else name.rpartition(":")[2]


def create_from_table(name: str, where: str) -> Any:  # noqa: ANN401
    """Load ``module:Name``, and call a class without arguments.

    Raises:
        InputError: `load_code` fails, or the class has required arguments.
    """
    require(":" in name, f"'{where}' must be 'module:Name' (got '{name}')")
    member = load_code(name, where, values=True)
    try:
        return member() if isinstance(member, type) else member
    except TypeError as error:
        raise InputError(f"'{where}' must name a class without required arguments (got '{name}'): {error}") from error


def load_code(name: str, where: str, *, values: bool = False) -> Any:  # noqa: ANN401
    """Load the class or function ``module:Name`` from the current directory or Python's path.

    Args:
        where: the configuration key, for error messages.
        values: whether to allow other objects than classes and functions.

    Raises:
        InputError: the module cannot be imported, belongs to Python's standard library, or has no class or function of
            that name.
    """
    module, _, member = name.partition(":")
    require(
        module.partition(".")[0] not in sys.stdlib_module_names,
        f"'{where}' must be in your own module or an installed package (got '{name}' from Python's standard library)",
    )
    if str(Path.cwd()) not in sys.path:
        # Permanent, for later imports of the module and for worker processes.
        sys.path.append(str(Path.cwd()))
    try:
        members = vars(importlib.import_module(module))
    except ModuleNotFoundError as error:
        missing = error.name is not None and f"{module}.".startswith(f"{error.name}.")
        folders = dict.fromkeys(path for path in (str(Path.cwd()), *sys.path) if path and Path(path).is_dir())
        places = f"{', '.join(path for path in folders if not path.startswith(_LIBRARIES))} or the installed packages"
        reason = f"'{error.name}' is not in {places}" if missing else failure(error)
        raise InputError(f"'{where}' = '{name}': cannot import '{module}': {reason}") from error
    except Exception as error:
        raise InputError(f"'{where}' = '{name}': cannot import '{module}': {failure(error)}") from error
    public = {key: value for key, value in members.items() if callable(value) and key[0] != "_"}
    defined = [key for key, value in public.items() if getattr(value, "__module__", module) == module]
    require(
        callable(members.get(member)) or (values and member in members),
        f"'{where}' = '{name}': the module has no class or function '{member}'; {suggest(member, defined, public)}",
    )
    return members[member]


def own_code(table: object, key: str = "") -> set[str]:
    """Return every ``module:Name`` that a configuration's table names."""
    if isinstance(table, dict):
        return {name for key, value in table.items() for name in own_code(value, key)}
    if isinstance(table, list | tuple):
        return {name for value in table for name in own_code(value, key)}
    plain = key.rpartition(".")[2] in ("path", "task", "device")
    return {table} if isinstance(table, str) and ":" in table and not plain else set()


def require_data(table: object, path: Path) -> None:
    """Raise `InputError` if a table names code, because importing code from an untrusted file would run it."""
    code = sorted(own_code(table))
    require(
        not code,
        f"{path}: names code (got {quote(code)}); add --allow-code (in Python: allow_code=True), or use only "
        "Shoal's own names",
    )


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def failure(error: Exception) -> str:
    """Describe an exception in a user's code in one sentence, with the last executed line of this code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames if not frame.filename.startswith(("<", str(Path(__file__).parents[1]), *_LIBRARIES))
    ]
    at = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{at}"
