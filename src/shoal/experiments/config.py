"""A run's configuration: what a TOML file may say, checked before anything is done.

Every mistake becomes one sentence that names the key, what was given and what is allowed.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from shoal.algorithms import ALGORITHMS
from shoal.attacks import ATTACKS
from shoal.core.checks import InputError, nearest
from shoal.models import MODELS

Range = Annotated[list[float], Field(min_length=2, max_length=2)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A table of the file: unknown keys are errors, and types are taken as they are written."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class GroupSection(Section):
    """[data.groups.NAME]: clients whose images are shifted in the same way."""

    share: Annotated[float, Field(gt=0, le=1)]
    rotation: Range | None = None
    brightness: Range | None = None


class DataSection(Section):
    """[data]: which images, and who holds them."""

    source: str
    path: str | None = None
    clients: Positive
    examples_per_client: Positive
    holdout_examples: Count = 0
    shadow_examples: Count = 0
    test_examples: Positive
    dirichlet_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    reuse_images: bool = False
    groups: dict[str, GroupSection] = Field(default={"all": GroupSection(share=1.0)}, min_length=1)


class ModelSection(Section):
    """[model]: the network."""

    name: Literal["digits-cnn", "mnist-cnn", "femnist-cnn", "vgg11", "vgg13", "vgg16", "mlp", "logistic"]
    classes: Annotated[int, Field(ge=2)] | None = None
    hidden: Annotated[int, Field(ge=1, le=100_000)] = 200
    norm: Literal["batch", "group"] = "batch"
    padding: Annotated[int, Field(ge=0, le=1)] = 0


class RedrawSection(Section):
    """[algorithm.redraw]: IFCA's official rule for initial models."""

    share: Annotated[float, Field(gt=0, lt=1)] = 0.35
    clients: Positive = 20
    attempts: Positive = 100


class AlgorithmSection(Section):
    """[algorithm]: who trains which model, and for how long."""

    name: Literal["fedavg", "ifca", "ifca-mir"]
    clusters: Positive = 2
    rounds: Positive
    participation: Share = 1.0
    averaging: Literal["model", "gradient"] = "model"
    weighting: Literal["equal", "examples"] = "equal"
    choose_by: Literal["all", "batch"] = "all"
    redraw: RedrawSection | None = None


class LocalSection(Section):
    """[local]: what a client does in a round."""

    epochs: Positive | None = None
    steps: Positive | None = None
    batch_size: Positive | Literal["all"] = 32
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class RedTeamSection(Section):
    """[red_team]: how the models are attacked."""

    every: Count = 5
    estimator: Literal["shadow", "federated", "audit"] = "shadow"
    attack: Literal["shadow", "loss-threshold", "gap"] = "shadow"
    shadow_models: Positive = 3
    shadow_size: Positive | Literal["cluster"] = "cluster"
    shadow_epochs: Positive | Literal["round"] = "round"
    warm_start: bool = True
    classifier: Literal["logistic", "mlp", "random-forest"] = "logistic"
    per_class: bool = True
    sorted_posteriors: bool = False


class PrivacySection(Section):
    """[privacy]: what clients tolerate."""

    thresholds: Range = [0.5, 0.8]
    beta: Share | Literal["threshold"] | list[Share] = "threshold"


class EngineSection(Section):
    """[engine]: on what it is computed."""

    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    threads: Positive = 2
    precision: Literal["fp32", "bf16"] = "fp32"
    backend: Literal["auto", "loop", "vmap"] = "auto"


class EverySection(Section):
    """[evaluation] and [checkpoint]: how often, in rounds."""

    every: Positive = 1


class Config(Section):
    """One run."""

    seed: Count = 0
    data: DataSection
    model: ModelSection
    algorithm: AlgorithmSection
    local: LocalSection = LocalSection()
    red_team: RedTeamSection = RedTeamSection()
    privacy: PrivacySection = PrivacySection()
    engine: EngineSection = EngineSection()
    evaluation: EverySection = EverySection()
    checkpoint: EverySection = EverySection()

    def toml(self) -> str:
        """The whole configuration as a file that gives it back; keys without a value are left out."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


assert get_args(ModelSection.model_fields["name"].annotation) == MODELS
assert get_args(AlgorithmSection.model_fields["name"].annotation) == ALGORITHMS
assert get_args(RedTeamSection.model_fields["attack"].annotation) == ATTACKS


def read_config(path: Path, changes: Iterable[str] = ()) -> Config:
    """The configuration in a TOML file, with ``changes`` such as "algorithm.rounds=10" made to it.

    Raises:
        InputError: the file is missing or not TOML, a key is unknown or has a value that is not allowed.
    """
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not TOML: {error}") from error
    for change in changes:
        _change(given, change)
    return parse_config(given, str(path))


def parse_config(given: Mapping[str, Any], where: str) -> Config:
    """The configuration that a table says; ``where`` names it in error sentences."""
    try:
        return Config.model_validate(dict(given))
    except ValidationError as error:
        # A mistyped key is often the reason why another is missing, so it comes first.
        errors = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        raise InputError(f"{where}: {_sentence(errors[0], errors)}") from error


def _change(given: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    parts = _parts(key)
    if not equals or not parts:
        raise InputError(f"--set takes KEY=VALUE, such as algorithm.rounds=10; got '{change}'")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    table = given
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(f"--set {change}: '{part}' is a value, not a table")
    table[parts[-1]] = value


def _parts(key: str) -> list[str]:
    """The names in a dotted key, read as TOML reads it; none where it is no key."""
    try:
        table: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return []
    parts = []
    while isinstance(table, dict):
        ((part, table),) = table.items()
        parts.append(part)
    return parts


def _sentence(first: ErrorDetails, errors: list[ErrorDetails]) -> str:
    path = _without_alternatives(first)
    key = ".".join(path)
    match first["type"]:
        case "extra_forbidden":
            return f"unknown key '{key}'; {nearest(path[-1], _section(path[:-1]).model_fields)}"
        case "missing":
            return f"the key '{key}' is missing"
        case _:
            given = "a table" if isinstance(first["input"], dict) else repr(first["input"])
            same = [error for error in errors if _without_alternatives(error) == path]
            return f"'{key}' must be {' or '.join(dict.fromkeys(map(_allowed, same)))}; got {given}"


def _without_alternatives(error: ErrorDetails) -> list[str]:
    """The keys that lead to an error, without what pydantic adds: the type it tried, and positions in lists."""
    kept: list[str] = []
    for part in error["loc"]:
        section = _section(kept)
        if error["type"] != "extra_forbidden" and kept[-1:] != ["groups"] and str(part) not in section.model_fields:
            break
        kept.append(str(part))
    return kept


def _section(path: list[str]) -> type[Section]:
    """The section that a path of keys leads to."""
    section: type[Section] = Config
    for part in path:
        if part == "groups" or part not in section.model_fields:
            section = GroupSection
            continue
        annotation = section.model_fields[part].annotation
        for kind in (annotation, *get_args(annotation)):
            if isinstance(kind, type) and issubclass(kind, Section):
                section = kind
    return section


def _allowed(error: ErrorDetails) -> str:
    """What pydantic expected, as the rest of a sentence after "must be"."""
    context = error.get("ctx", {})
    match error["type"]:
        case "too_short" | "too_long":
            return (
                "two numbers, [low, high]" if "max_length" in context or context.get("min_length") == 2 else "not empty"
            )
        case "string_pattern_mismatch":
            return "'cpu' or 'cuda'"
        case "literal_error":
            return context["expected"]
        case "greater_than":
            return f"above {context['gt']}"
        case "greater_than_equal":
            return f"at least {context['ge']}"
        case "less_than":
            return f"below {context['lt']}"
        case "less_than_equal":
            return f"at most {context['le']}"
        case "model_type" | "dict_type":
            return "a table"
        case _:
            kinds = {
                "int_type": "a whole number",
                "float_type": "a number",
                "string_type": "a string",
                "list_type": "a list",
                "bool_type": "true or false",
                "finite_number": "a finite number",
            }
            return kinds.get(error["type"], error["msg"].removeprefix("Input should be "))
