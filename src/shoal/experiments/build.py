"""From a configuration to the values of the rooms: a federation, a model, an algorithm, a red team."""

from pathlib import Path

from shoal.algorithms import IFCA, IFCAMIR, FedAvg, Redraw
from shoal.attacks import Gap, LossThreshold, MembershipAttack, RedTeam, ShadowModels, Shokri
from shoal.core.checks import require
from shoal.core.randomness import Stream
from shoal.data import Group, Images, Preferences, Split, draw_preferences, load_images, split_images
from shoal.defenses import DPSGD, L2, Defense, Dropout, NormClipping, Setup, defended
from shoal.engine import Algorithm, LocalSGD, check_backend, resolve_backend
from shoal.experiments.agreement import check_together
from shoal.experiments.config import Config, DataSection
from shoal.experiments.simulation import Simulation
from shoal.models import Model, Shape, named_model


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
    stream = Stream(config.seed, ("data",))
    setup = build_setup(decided, images)
    simulation = Simulation(
        federation=split_images(images, _plan(config.data), _groups(config.data), _preferences(config), stream),
        model=setup.model,
        algorithm=build_algorithm(config),
        local=setup.local,
        rounds=config.algorithm.rounds,
        seed=config.seed,
        participation=config.algorithm.participation,
        red_team=build_red_team(config),
        evaluate_every=config.evaluation.every,
        screen=setup.screen,
    )
    return decided, simulation


def images_of(config: Config, data_dir: Path | None = None) -> Images:
    """The images of [data], from where they lie."""
    path = None if config.data.path is None else Path(config.data.path)
    return load_images(config.data.source, data_dir=data_dir, path=path)


def decide(config: Config, images: Images) -> Config:
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
    config = config.model_copy(update={"model": config.model.model_copy(update={"classes": classes})})
    setup = build_setup(config, images)
    algorithm, local = build_algorithm(config), setup.local
    _agree(config)
    check_backend(None if config.engine.backend == "auto" else config.engine.backend, setup.model, local)
    check_together(algorithm, local, build_red_team(config))
    _plan(config.data).check(images, _groups(config.data))
    _preferences(config)
    return config.model_copy(
        update={
            "data": config.data.model_copy(update={"path": _absolute(config.data.path)}),
            "algorithm": config.algorithm.model_copy(update={"clusters": algorithm.clusters}),
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


def build_model(config: Config, images: Images) -> Model:
    """The network of [model], fitted to the images, and to their classes unless the section says how many."""
    _, channels, height, width = images.pixels.shape
    section = config.model
    shape = Shape(channels, height, width, images.classes if section.classes is None else section.classes)
    return named_model(section.name, shape, hidden=section.hidden, norm=section.norm, padding=section.padding)


def build_setup(config: Config, images: Images) -> Setup:
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
        return FedAvg()
    ifca = IFCA(
        clusters=section.clusters,
        averaging=section.averaging,
        weighting=section.weighting,
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
    require(
        config.data.test_examples >= len(config.data.groups),
        f"'data.test_examples' must be at least one for each of {len(config.data.groups)} groups; "
        f"got {config.data.test_examples}",
    )
