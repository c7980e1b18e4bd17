"""A run's configuration: what a TOML file may say, checked before anything is done."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import Field

from shoal.attacks import MembershipAttacks
from shoal.config.validation import Count, Positive, Range, Section, Share, change_key, key_parts, parse, read_toml
from shoal.core.errors import InputError
from shoal.models import MODELS


class GroupSection(Section):
    """[data.groups.NAME]: clients whose images are shifted in the same way; with share 0, held-out images alone."""

    share: Share
    rotation: Range | None = None
    brightness: Range | None = None


class DataSection(Section):
    """[data]: which images, and who holds them."""

    source: str
    path: str | None = None
    task: str | None = None
    clients: Positive
    examples_per_client: Positive
    holdout_examples: Count = 0
    shadow_examples: Count = 0
    test_examples: Positive
    dirichlet_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    reuse_images: bool = False
    groups: dict[str, GroupSection] = Field(default={"all": GroupSection(share=1.0)}, min_length=1)

    @property
    def groups_with_clients(self) -> list[str]:
        """The names of the groups that have clients."""
        return [name for name, group in self.groups.items() if group.share > 0]


class ModelSection(Section):
    """[model]: the network."""

    name: Literal[
        "digits-cnn",
        "mnist-cnn",
        "femnist-cnn",
        "vgg11",
        "vgg13",
        "vgg16",
        "mlp",
        "logistic",
        "faces-cnn",
        "gru",
    ]
    classes: Annotated[int, Field(ge=2)] | None = None
    hidden: Annotated[int, Field(ge=1, le=100_000)] | None = None
    filters: Annotated[list[Annotated[int, Field(ge=1, le=10_000)]], Field(min_length=3, max_length=3)] | None = None
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
    weighting: Literal["equal", "examples"] | None = None
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


class DPSGDSection(Section):
    """[defenses.dp_sgd]: private local steps."""

    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    accountant: Literal["rdp", "prv"] = "rdp"
    sampling: Literal["shuffled", "poisson"] = "shuffled"


class DefensesSection(Section):
    """[defenses]: what is done against those who learn from updates; what is left out is not done."""

    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    l2: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    dp_sgd: DPSGDSection | None = None
    max_update_norm: Annotated[float, Field(gt=0)] | None = None


class PrivacySection(Section):
    """[privacy]: what clients tolerate."""

    thresholds: Range = Field(default=[0.5, 0.8])
    beta: Share | Literal["threshold"] | list[Share] = "threshold"


class PropertyAttackSection(Section):
    """[property_attack]: one client holds the property of [data] task, and another looks for it."""

    mode: Literal["passive", "active", "scaled"] = "passive"
    alpha: Share = 0.9
    gamma: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0
    every: Annotated[int, Field(ge=2)] = 5
    attacker_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    sees: Literal["all", "own"] = "all"
    simulate_every: Positive = 1
    simulated_clients: Positive = 8
    simulated_updates: Positive = 8
    aggregate_of: Positive | Literal["cluster"] = "cluster"
    mixes: list[Annotated[float, Field(gt=0, le=1)]] = Field(default=[1.0], min_length=1)
    auxiliary: Literal["attacker", "attacker+test"] = "attacker"
    matches_labels: bool = False
    removes_own: bool = False
    warm_up: Count = 0
    forests: Literal["single", "per-cluster"] = "single"
    trees: Positive = 100
    teaches_head: bool = True
    maps: bool = True


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
    property_attack: PropertyAttackSection | None = None
    defenses: DefensesSection = DefensesSection()
    engine: EngineSection = EngineSection()
    evaluation: EverySection = EverySection()
    checkpoint: EverySection = EverySection()

    def toml(self) -> str:
        """The whole configuration as a file that gives it back; keys without a value are left out."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


assert get_args(ModelSection.model_fields["name"].annotation) == MODELS
assert get_args(RedTeamSection.model_fields["attack"].annotation) == tuple(a.name for a in get_args(MembershipAttacks))


def read_config(path: Path, changes: Iterable[str] = ()) -> Config:
    """The configuration in a TOML file, with ``changes`` such as "algorithm.rounds=10" made to it.

    Raises:
        InputError: the file is missing or not TOML, a key is unknown or has a value that is not allowed.
    """
    given = read_toml(path)
    for change in changes:
        _change(given, change)
    return parse_config(given, str(path))


def parse_config(given: Mapping[str, Any], where: str) -> Config:
    """The configuration that a table says; ``where`` names it in error sentences."""
    return parse(Config, given, where)


def _change(given: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    parts = key_parts(key)
    if not equals or not parts:
        raise InputError(f"--set takes KEY=VALUE, such as algorithm.rounds=10; got '{change}'")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    try:
        change_key(given, parts, value)
    except InputError as error:
        raise InputError(f"--set {change}: {error}") from error
