"""Classes that a file names: shipped algorithms, attacks and defences by a word, a user's own by ``module:Name``."""

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
    """Value of the table: `shoal.property.PropertyAttackSection`, or a class that ``name = "module:Name"`` names.

    ``config`` is the configuration, a `shoal.Config`.
    """

    attack: RoundAttack

    @staticmethod
    def from_simulation(simulation: Simulation) -> "RoundAttackSection | None":
        """The table that describes the attack of a simulation in Python; None where none does."""
        ...

    def check(self, config: Any) -> None:  # noqa: ANN401 - its schema has a field of this type
        """Raise `InputError` where other tables contradict this one."""
        ...

    def draw(self, config: Any, dataset: LabelledDataset, stream: Stream) -> PartitionIndices:  # noqa: ANN401
        """Draw the partition of the examples."""
        ...

    def federation(
        self,
        config: Any,  # noqa: ANN401
        dataset: LabelledDataset,
        indices: PartitionIndices,
        preferences: Preferences,
        stream: Stream,
    ) -> Federation:
        """The federation of these examples, as `draw` gave them."""
        ...

    def malicious_clients(self, model: Model, federation: Federation) -> MaliciousClients | None:
        """Clients that train in their own way for the attack; None where it only observes."""
        ...


@dataclass(frozen=True)
class Kind:
    """Settings that a file chooses between by name."""

    title: str  # of one of them, in sentences
    protocol: type  # that they implement
    group: str = ""  # of the entry points by which installed packages add some
    shipped: Mapping[str, type] = field(default_factory=dict)  # by their names
    default: str = ""  # the class of a table without a name, as module:Name, where it is loaded only if it is needed

    @property
    def added(self) -> dict[str, str]:
        """The names that installed packages add, each with its ``module:Name``."""
        return installed_names(self.group, self.shipped)

    def unnamed(self, where: str) -> type:
        """The class of a table without a name."""
        require(bool(self.default), f"the key '{where}' is missing")
        return load_code(self.default, where)

    def named(self, name: object, where: str) -> type:
        """The class called ``name``; ``where`` is the key that says so.

        Raises:
            InputError: no class of this kind has that name.
        """
        added = self.added
        if isinstance(name, str) and name in self.shipped:
            return self.shipped[name]
        if not isinstance(name, str) or (":" not in name and name not in added):
            names = [*self.shipped, *added]
            close = suggest(str(name), names)
            if close.startswith("did"):
                raise InputError(f"'{where}' is unknown; {close} (got {spell_value(name)})")
            raise InputError(f"'{where}' must be {one_of([*names, 'module:Name'])}; got {spell_value(name)}")
        cls = load_code(added.get(name, name), where)
        require(
            isinstance(cls, type) and is_dataclass(cls),
            f"'{where}' = '{name}' must be a class with the decorator @settings; got {cls!r}",
        )
        members = {*dir(cls), *(field.name for field in fields(cls))}
        missing = [member for member in vars(self.protocol) if not member.startswith("_") and member not in members]
        require(not missing, f"'{where}' = '{name}' is not {self.title}: it has no '{missing[0] if missing else ''}'")
        origin = name_of(cls)
        # The name is written into config.toml, from where it must lead to the same class.
        written = (origin, added.get(origin))
        require(name in written, f"'{where}' = '{name}' is defined elsewhere; call it '{origin}'")
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
"""The kinds, by the protocol with which fields are annotated."""


def kind_of(hint: object) -> Kind | None:
    """The kind of which a field with this annotation holds one; None: of none."""
    return KINDS.get(hint) if isinstance(hint, type) else None


def name_of(cls: type) -> str:
    """The name of a class in a file.

    >>> from shoal.algorithms import IFCAMIR
    >>> name_of(IFCAMIR)
    'ifca-mir'
    """
    if any(cls in kind.shipped.values() for kind in KINDS.values()):
        return getattr(cls, "name")  # noqa: B009
    origin = f"{cls.__module__}:{cls.__qualname__}"
    return next((name for kind in KINDS.values() for name, code in kind.added.items() if code == origin), origin)


def own_source(source: str) -> str | None:
    """The ``module:Name`` of a data source of a user's own, or of an installed package; None: it is one of Shoal's."""
    return source if ":" in source else installed_names("shoal.sources", SOURCES).get(source)


def title_of(algorithm: Algorithm) -> str:
    """An algorithm's name in text: the ``title`` that its class declares itself, or else the name of the class."""
    return str(vars(type(algorithm)).get("title", type(algorithm).__name__))


def algorithm_title(name: str) -> str:
    """An algorithm's name in text, from its name in a file alone; see `title_of`.

    >>> algorithm_title("ifca-mir"), algorithm_title("mine:Sticky")
    ('IFCA-MIR', 'Sticky')
    """
    return ALGORITHMS[name].title if name in ALGORITHMS else name.rpartition(":")[2]


def create_from_table(name: str, where: str) -> Any:  # noqa: ANN401
    """The value ``module:Name``, or that of a class made without arguments.

    Raises:
        InputError: as `load_code`, or the class needs arguments.
    """
    require(":" in name, f"'{where}' must be 'module:Name'; got '{name}'")
    member = load_code(name, where, values=True)
    try:
        return member() if isinstance(member, type) else member
    except TypeError as error:
        raise InputError(f"'{where}' = '{name}' must be a class that is made without arguments: {error}") from error


def load_code(name: str, where: str, *, values: bool = False) -> Any:  # noqa: ANN401
    """The class or function ``module:Name``, from the current directory or wherever Python finds modules; or a value.

    Raises:
        InputError: the module cannot be imported, is Python's own, or has no class or function of that name.
    """
    module, _, member = name.partition(":")
    require(
        module.partition(".")[0] not in sys.stdlib_module_names,
        f"'{where}' = '{name}' must be of a module of yours or of an installed package, not of Python's own '{module}'",
    )
    if str(Path.cwd()) not in sys.path:
        # Stays there, for what the module imports later and for worker processes.
        sys.path.append(str(Path.cwd()))
    try:
        members = vars(importlib.import_module(module))
    except ModuleNotFoundError as error:
        missing = error.name is not None and f"{module}.".startswith(f"{error.name}.")
        reason = f"there is no '{error.name}' in {_places()}" if missing else failure(error)
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
    """Each ``module:Name`` in a configuration's table, whose module is imported where the table becomes values."""
    if isinstance(table, dict):
        return {name for key, value in table.items() for name in own_code(value, key)}
    if isinstance(table, list | tuple):
        return {name for value in table for name in own_code(value, key)}
    plain = key.rpartition(".")[2] in ("path", "task", "device")
    return {table} if isinstance(table, str) and ":" in table and not plain else set()


def require_data(table: object, path: Path) -> None:
    """Raise `InputError` where the table in a file that may be somebody else's names code."""
    code = sorted(own_code(table))
    require(
        not code,
        f"{path}: is data and names code, {quote(code)}, which is run where it is imported; without --allow-code (in "
        "Python: allow_code=True) Shoal's own names alone are allowed",
    )


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def _places() -> str:
    """The folders in which modules are looked for, in a sentence."""
    folders = dict.fromkeys(path for path in (str(Path.cwd()), *sys.path) if path and Path(path).is_dir())
    return f"{', '.join(path for path in folders if not path.startswith(_LIBRARIES))} or the installed packages"


def failure(error: Exception) -> str:
    """An exception of a user's code, with the last of its lines that led there, in one sentence."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames if not frame.filename.startswith(("<", str(Path(__file__).parents[1]), *_LIBRARIES))
    ]
    at = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{at}"
