"""From a configuration to the values of the rooms: a federation, a model, an algorithm, a red team."""

from pathlib import Path
from typing import Literal

from shoal.algorithms import IFCA, IFCAMIR, FedAvg, Redraw
from shoal.attacks import (
    Gap,
    LossThreshold,
    MembershipAttack,
    PropertyAttack,
    RedTeam,
    ShadowModels,
    Shokri,
    active_attacker,
)
from shoal.core.checks import require
from shoal.core.randomness import Stream
from shoal.data import (
    Federation,
    Group,
    Labelled,
    Preferences,
    PropertySplit,
    Split,
    Texts,
    deal_property,
    draw_preferences,
    load_images,
    split_images,
    split_property,
)
from shoal.defenses import DPSGD, L2, Defense, Dropout, NormClipping, Setup, defended
from shoal.engine import Algorithm, LocalSGD, check_backend, resolve_backend
from shoal.experiments.agreement import check_together
from shoal.experiments.config import Config, DataSection, ModelSection
from shoal.experiments.simulation import Simulation
from shoal.models import FILTERS, HIDDEN, Model, Shape, TextShape, named_model


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
    federation, algorithm = _federation(config, images), build_algorithm(config)
    section = config.property_attack
    insider = None
    if section is not None and section.mode != "passive":
        insider = active_attacker(
            setup.model,
            federation,
            algorithm.clusters,
            alpha=section.alpha,
            gamma=section.gamma if section.mode == "scaled" else 1.0,
            teaches_head=section.teaches_head,
        )
    simulation = Simulation(
        federation=federation,
        model=setup.model,
        algorithm=algorithm,
        local=setup.local,
        rounds=config.algorithm.rounds,
        seed=config.seed,
        participation=config.algorithm.participation,
        red_team=build_red_team(config),
        evaluate_every=config.evaluation.every,
        property_attack=build_property_attack(config),
        insider=insider,
        maps=section is not None and section.maps,
        screen=setup.screen,
    )
    return decided, simulation


def images_of(config: Config, data_dir: Path | None = None) -> Labelled:
    """The images or texts of [data], from where they lie."""
    path = None if config.data.path is None else Path(config.data.path)
    return load_images(config.data.source, data_dir=data_dir, path=path, task=config.data.task)


def decide(config: Config, images: Labelled) -> Config:
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
        deal_property(images, _property_plan(config), Stream(config.seed, ("data",)))
        build_property_attack(config)
    _preferences(config)
    return config.model_copy(
        update={
            "data": config.data.model_copy(update={"path": _absolute(config.data.path)}),
            "algorithm": config.algorithm.model_copy(
                update={"clusters": algorithm.clusters, "weighting": _weighting(config)}
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


def build_model(config: Config, images: Labelled) -> Model:
    """The network of [model], fitted to the images, and to their classes unless the section says how many."""
    section = config.model
    classes = images.classes if section.classes is None else section.classes
    if isinstance(images, Texts):
        shape = TextShape(images.vocabulary, classes)
    else:
        _, channels, height, width = images.pixels.shape
        shape = Shape(channels, height, width, classes)
    return named_model(
        section.name,
        shape,
        hidden=section.hidden,
        filters=section.filters,
        norm=section.norm,
        padding=section.padding,
    )


def _decided(section: ModelSection, classes: int) -> ModelSection:
    """The section with the sizes of the model it names, and without those of others."""
    sizes: dict[str, int | list[int] | None] = {"classes": classes, "hidden": None, "filters": None}
    if section.name in HIDDEN:
        sizes["hidden"] = HIDDEN[section.name] if section.hidden is None else section.hidden
    if section.name in FILTERS:
        sizes["filters"] = list(FILTERS[section.name]) if section.filters is None else section.filters
    return section.model_copy(update=sizes)


def build_setup(config: Config, images: Labelled) -> Setup:
    """What is trained and how, with all of [defenses].

    Raises:
        InputError: a defence that has no place there.
    """
    return defended(Setup(build_model(config, images), _local(config)), build_defenses(config))


def build_defenses(config: Config) -> tuple[Defense, ...]:
    """The defences of [defenses]."""
    section = config.defenses
    given: list[Defense] = []
    if section.dropout is not None:
        given.append(Dropout(section.dropout))
    if section.l2 is not None:
        given.append(L2(section.l2))
    if section.dp_sgd is not None:
        given.append(DPSGD(**section.dp_sgd.model_dump()))
    if section.max_update_norm is not None:
        given.append(NormClipping(section.max_update_norm))
    return tuple(given)


def build_algorithm(config: Config) -> Algorithm:
    """The algorithm of [algorithm]; FedAvg has one model whatever 'clusters' says."""
    section = config.algorithm
    if section.name == "fedavg":
        return FedAvg(_weighting(config))
    ifca = IFCA(
        clusters=section.clusters,
        averaging=section.averaging,
        weighting=_weighting(config),
        choose_by=section.choose_by,
        redraw=None if section.redraw is None else Redraw(**section.redraw.model_dump()),
    )
    return ifca if section.name == "ifca" else IFCAMIR(ifca)


def build_red_team(config: Config) -> RedTeam:
    """The red team of [red_team]."""
    section = config.red_team
    attack: MembershipAttack
    match section.attack:
        case "shadow":
            attack = Shokri(section.classifier, section.per_class, section.sorted_posteriors)
        case "loss-threshold":
            attack = LossThreshold()
        case "gap":
            attack = Gap()
    shadow_models = ShadowModels(
        number=section.shadow_models,
        size=None if section.shadow_size == "cluster" else section.shadow_size,
        epochs=None if section.shadow_epochs == "round" else section.shadow_epochs,
        warm_start=section.warm_start,
    )
    return RedTeam(section.every, section.estimator, attack, shadow_models)


def build_property_attack(config: Config) -> PropertyAttack | None:
    """The attack of [property_attack]; None where the section is missing."""
    section = config.property_attack
    if section is None:
        return None
    return PropertyAttack(
        sees=section.sees,
        simulate_every=section.simulate_every,
        simulated_clients=section.simulated_clients,
        simulated_updates=section.simulated_updates,
        aggregate_of=None if section.aggregate_of == "cluster" else section.aggregate_of,
        mixes=tuple(section.mixes),
        auxiliary=section.auxiliary,
        matches_labels=section.matches_labels,
        removes_own=section.removes_own,
        warm_up=section.warm_up,
        forests=section.forests,
        trees=section.trees,
    )


def _federation(config: Config, images: Labelled) -> Federation:
    stream, preferences = Stream(config.seed, ("data",)), _preferences(config)
    if config.property_attack is not None:
        return split_property(images, _property_plan(config), preferences, stream)
    return split_images(images, _plan(config.data), _groups(config.data), preferences, stream)


def _property_plan(config: Config) -> PropertySplit:
    section, local = config.property_attack, _local(config)
    assert section is not None
    return PropertySplit(
        split=_plan(config.data),
        attacker_share=section.attacker_share,
        every=section.every,
        least=local.batch(config.data.examples_per_client),
    )


def _weighting(config: Config) -> Literal["equal", "examples"]:
    """By examples in FedAvg and equal in IFCA, as their papers have it, unless the file says otherwise."""
    named = config.algorithm.weighting
    return named if named is not None else "examples" if config.algorithm.name == "fedavg" else "equal"


def _absolute(path: str | None) -> str | None:
    """The path as it can be found from anywhere, so that a written configuration runs again."""
    return None if path is None else str(Path(path).expanduser().resolve())


def _local(config: Config) -> LocalSGD:
    section = config.local
    return LocalSGD(
        epochs=1 if section.epochs is None and section.steps is None else section.epochs,
        steps=section.steps,
        batch_size=None if section.batch_size == "all" else section.batch_size,
        learning_rate=section.learning_rate,
        decay=section.decay,
        weight_decay=section.weight_decay,
    )


def _plan(data: DataSection) -> Split:
    return Split(
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
        require(
            section.warm_up + section.every <= config.algorithm.rounds,
            f"'algorithm.rounds' must be at least {section.warm_up + section.every}, or the victim never trains on the "
            f"property in an attacked round and the AUC is undefined; got {config.algorithm.rounds}",
        )
    require(
        config.data.test_examples >= len(config.data.groups),
        f"'data.test_examples' must be at least one for each of {len(config.data.groups)} groups; "
        f"got {config.data.test_examples}",
    )
