"""From a configuration to a simulation: its data dealt out, its keys checked against each other."""

from pathlib import Path

from shoal.config.components import (
    build_algorithm,
    build_insider,
    build_local,
    build_property_attack,
    build_red_team,
    build_setup,
    weighting_of,
)
from shoal.config.schema import Config, DataSection, ModelSection
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data import (
    Federation,
    Group,
    LabelledDataset,
    Partition,
    Preferences,
    PropertyPartition,
    draw_preferences,
    draw_property_partition,
    load_dataset,
    partition_by_property,
    partition_dataset,
)
from shoal.engine import check_backend, resolve_backend
from shoal.models import FILTERS, HIDDEN
from shoal.simulation.compatibility import check_together
from shoal.simulation.simulation import Simulation


def build(config: Config, data_dir: Path | None = None) -> tuple[Config, Simulation]:
    """The simulation that ``config`` describes, and the configuration with everything it left open decided.

    Args:
        config: what to run.
        data_dir: where to look for data first.

    Raises:
        InputError: data that is missing, damaged or too small, or keys that contradict each other.
    """
    images = images_of(config, data_dir)
    decided = decide(config, images)
    setup = build_setup(decided, images)
    federation = _federation(config, images)
    section, attack = config.property_attack, build_property_attack(config)
    if attack is not None:
        attack.examples(federation)
    simulation = Simulation(
        federation=federation,
        model=setup.model,
        algorithm=build_algorithm(config),
        local=setup.local,
        rounds=config.algorithm.rounds,
        seed=config.seed,
        participation=config.algorithm.participation,
        red_team=build_red_team(config),
        evaluate_every=config.evaluation.every,
        property_attack=attack,
        malicious_client=build_insider(config, setup.model, federation),
        maps=section is not None and section.maps,
        update_filter=setup.update_filter,
    )
    return decided, simulation


def images_of(config: Config, data_dir: Path | None = None) -> LabelledDataset:
    """The images or texts of [data], from where they lie."""
    path = None if config.data.path is None else Path(config.data.path)
    return load_dataset(config.data.source, data_dir=data_dir, path=path, task=config.data.task)


def decide(config: Config, images: LabelledDataset) -> Config:
    """``config`` with everything it left open decided, without dealing out any image.

    Raises:
        InputError: images that are too few, or keys that contradict each other.
    """
    classes = config.model.classes if config.model.classes is not None else images.classes
    largest = int(images.labels.max())
    require(
        largest < classes,
        f"{images.name} has the label {largest}, but the model has {classes} classes; set 'model.classes' to "
        f"{largest + 1} or more",
    )
    config = config.model_copy(update={"model": _decided(config.model, classes)})
    setup = build_setup(config, images)
    algorithm, local = build_algorithm(config), setup.local
    _agree(config)
    check_backend(None if config.engine.backend == "auto" else config.engine.backend, setup.model, local)
    check_together(algorithm, local, build_red_team(config))
    if config.property_attack is None:
        _plan(config.data).check(images, _groups(config.data))
    else:
        draw_property_partition(images, _property_plan(config), Stream(config.seed, ("data",)))
        build_property_attack(config)
    _preferences(config)
    return config.model_copy(
        update={
            "data": config.data.model_copy(update={"path": _absolute(config.data.path)}),
            "algorithm": config.algorithm.model_copy(
                update={"clusters": algorithm.clusters, "weighting": weighting_of(config)}
            ),
            "local": config.local.model_copy(update={"epochs": local.epochs}),
            "engine": config.engine.model_copy(
                update={
                    "backend": resolve_backend(setup.model, local)
                    if config.engine.backend == "auto"
                    else config.engine.backend
                }
            ),
        }
    )


def _decided(section: ModelSection, classes: int) -> ModelSection:
    """The section with the sizes of the model it names, and without those of others."""
    sizes: dict[str, int | list[int] | None] = {"classes": classes, "hidden": None, "filters": None}
    if section.name in HIDDEN:
        sizes["hidden"] = HIDDEN[section.name] if section.hidden is None else section.hidden
    if section.name in FILTERS:
        sizes["filters"] = list(FILTERS[section.name]) if section.filters is None else section.filters
    return section.model_copy(update=sizes)


def _federation(config: Config, images: LabelledDataset) -> Federation:
    stream, preferences = Stream(config.seed, ("data",)), _preferences(config)
    if config.property_attack is not None:
        return partition_by_property(images, _property_plan(config), preferences, stream)
    return partition_dataset(images, _plan(config.data), _groups(config.data), preferences, stream)


def _property_plan(config: Config) -> PropertyPartition:
    section, local = config.property_attack, build_local(config)
    assert section is not None
    return PropertyPartition(
        partition=_plan(config.data),
        attacker_share=section.attacker_share,
        period=section.every,
        min_examples=local.batch(config.data.examples_per_client),
    )


def _absolute(path: str | None) -> str | None:
    """The path as it can be found from anywhere, so that a written configuration runs again."""
    return None if path is None else str(Path(path).expanduser().resolve())


def _plan(data: DataSection) -> Partition:
    return Partition(
        clients=data.clients,
        examples_per_client=data.examples_per_client,
        shadow_examples=data.shadow_examples,
        test_examples=data.test_examples,
        holdout_examples=data.holdout_examples,
        dirichlet_alpha=data.dirichlet_alpha,
        reuse_images=data.reuse_images,
    )


def _preferences(config: Config) -> Preferences:
    low, high = config.privacy.thresholds
    stream = Stream(config.seed, ("data",))
    return draw_preferences(config.data.clients, (low, high), config.privacy.beta, stream("preferences"))


def _groups(data: DataSection) -> list[Group]:
    return [
        Group(
            name=name,
            share=section.share,
            rotation=None if section.rotation is None else (section.rotation[0], section.rotation[1]),
            brightness=None if section.brightness is None else (section.brightness[0], section.brightness[1]),
        )
        for name, section in data.groups.items()
    ]


def _agree(config: Config) -> None:
    """Keys that make no sense together."""
    shadows = config.red_team.attack != "gap" or (config.red_team.estimator == "shadow" and config.red_team.every > 0)
    require(
        config.data.shadow_examples >= 2 or not shadows,
        f'\'red_team.attack\' = "{config.red_team.attack}" with the "{config.red_team.estimator}" estimator trains '
        f"shadow models, so 'data.shadow_examples' must be at least 2; got {config.data.shadow_examples}",
    )
    require(
        config.red_team.estimator != "federated" or config.data.holdout_examples > 0 or config.red_team.every == 0,
        "'red_team.estimator' = \"federated\" needs 'data.holdout_examples' to be at least 1; got 0",
    )
    require(
        config.algorithm.name == "fedavg" or config.algorithm.clusters <= config.data.clients,
        f"'algorithm.clusters' must be at most 'data.clients' = {config.data.clients}; got {config.algorithm.clusters}",
    )
    section = config.property_attack
    if section is not None:
        only = list(config.data.groups.values())
        require(
            len(only) == 1 and only[0].rotation is None and only[0].brightness is None,
            "'property_attack' deals examples out by label and property, so 'data.groups' must be left out",
        )
        require(not config.data.reuse_images, "'property_attack' does not go together with 'data.reuse_images'")
        first = (section.warm_up // section.every + 1) * section.every
        require(
            first <= config.algorithm.rounds,
            f"'algorithm.rounds' must be at least {first}, or the victim never trains on the "
            f"property in an attacked round and the AUC is undefined; got {config.algorithm.rounds}",
        )
    require(
        config.data.test_examples >= len(config.data.groups),
        f"'data.test_examples' must be at least one for each of {len(config.data.groups)} groups; "
        f"got {config.data.test_examples}",
    )
