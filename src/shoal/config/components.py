"""From a configuration's sections to the values that a run is made of: what is trained, how, and by whom attacked."""

from typing import Literal

from shoal.algorithms import IFCA, IFCAMIR, FedAvg, Redraw
from shoal.attacks import (
    Gap,
    LossThreshold,
    MembershipAttack,
    PropertyAttack,
    RedTeam,
    ShadowModelAttack,
    ShadowModels,
    active_property_attacker,
)
from shoal.config.schema import Config
from shoal.data import Federation, LabelledDataset, TextDataset
from shoal.defenses import DPSGD, L2, Defense, Dropout, NormClipping, TrainingSetup, defended
from shoal.engine import Algorithm, LocalSGD, MaliciousClients
from shoal.models import Model, Shape, TextShape, create_model


def build_model(config: Config, images: LabelledDataset) -> Model:
    """The network of [model], fitted to the images, and to their classes unless the section says how many."""
    section = config.model
    classes = images.classes if section.classes is None else section.classes
    if isinstance(images, TextDataset):
        shape = TextShape(images.vocabulary, classes)
    else:
        _, channels, height, width = images.pixels.shape
        shape = Shape(channels, height, width, classes)
    return create_model(
        section.name,
        shape,
        hidden=section.hidden,
        filters=section.filters,
        norm=section.norm,
        padding=section.padding,
    )


def build_local(config: Config) -> LocalSGD:
    """What a client does in a round: [local]."""
    section = config.local
    return LocalSGD(
        epochs=1 if section.epochs is None and section.steps is None else section.epochs,
        steps=section.steps,
        batch_size=section.batch_size,
        learning_rate=section.learning_rate,
        decay=section.decay,
        weight_decay=section.weight_decay,
    )


def build_setup(config: Config, images: LabelledDataset) -> TrainingSetup:
    """What is trained and how, with all of [defenses].

    Raises:
        InputError: a defence that has no place there.
    """
    return defended(TrainingSetup(build_model(config, images), build_local(config)), build_defenses(config))


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
        return FedAvg(weighting_of(config))
    ifca = IFCA(
        clusters=section.clusters,
        averaging=section.averaging,
        weighting=weighting_of(config),
        choose_by=section.choose_by,
        redraw=None if section.redraw is None else Redraw(**section.redraw.model_dump()),
    )
    return ifca if section.name == "ifca" else IFCAMIR(ifca)


def weighting_of(config: Config) -> Literal["equal", "examples"]:
    """By examples in FedAvg and equal in IFCA, as their papers have it, unless the file says otherwise."""
    named = config.algorithm.weighting
    return named if named is not None else "examples" if config.algorithm.name == "fedavg" else "equal"


def build_red_team(config: Config) -> RedTeam:
    """The red team of [red_team]."""
    section = config.red_team
    attack: MembershipAttack
    match section.attack:
        case "shadow":
            attack = ShadowModelAttack(section.classifier, section.per_class, section.sorted_posteriors)
        case "loss-threshold":
            attack = LossThreshold()
        case "gap":
            attack = Gap()
    shadow_models = ShadowModels(
        number=section.shadow_models,
        size=section.shadow_size,
        epochs=section.shadow_epochs,
        warm_start=section.warm_start,
    )
    return RedTeam(section.every, section.estimator, attack, shadow_models)


def build_property_attack(config: Config) -> PropertyAttack | None:
    """The attack of [property_attack]; None where the section is missing."""
    section = config.property_attack
    if section is None:
        return None
    return PropertyAttack(
        visible_models=section.sees,
        simulate_every=section.simulate_every,
        simulated_clients=section.simulated_clients,
        simulated_updates=section.simulated_updates,
        aggregate_of=section.aggregate_of,
        property_fractions=tuple(section.mixes),
        auxiliary=section.auxiliary,
        match_labels=section.matches_labels,
        remove_own_update=section.removes_own,
        warm_up=section.warm_up,
        forests=section.forests,
        trees=section.trees,
    )


def build_insider(config: Config, model: Model, federation: Federation) -> MaliciousClients | None:
    """The client that trains in its own way: the attacker of [property_attack], unless it only watches."""
    section = config.property_attack
    if section is None or section.mode == "passive":
        return None
    return active_property_attacker(
        model,
        federation,
        alpha=section.alpha,
        gamma=section.gamma if section.mode == "scaled" else 1.0,
        train_head=section.teaches_head,
    )
