"""Distillation: what students learn, who sees them, and that audits retrain them too."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

import shoal
from shoal.core.errors import InputError
from shoal.simulation.distillation import soft_cross_entropy


def blobs(count, seed, classes=3):
    draw, y = torch.Generator().manual_seed(seed), torch.arange(count) % classes
    return torch.randn(count, 6, generator=draw) + 3 * functional.one_hot(y, 6), y


def federation(shadow=60):
    public = blobs(shadow, seed=9) if shadow else None
    return shoal.Federation.from_tensors([blobs(12, seed=i) for i in range(4)], test=blobs(90, seed=8), shadow=public)


def simulation(own=None, **further):
    own = federation() if own is None else own
    model = shoal.create_model("logistic", shoal.VectorShape(6, 3))
    local = shoal.LocalSGD(epochs=3, batch_size=4, learning_rate=0.5)
    return shoal.Simulation(own, model, shoal.IFCA(clusters=2), local, rounds=3, **further)


def trained(simulation, out=None):
    return shoal.Run(simulation, out).train()


def test_soft_cross_entropy_of_certain_posteriors_is_cross_entropy():
    outputs, labels = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 1, 0])
    soft = soft_cross_entropy(outputs, functional.one_hot(labels, 3).float())
    torch.testing.assert_close(soft, functional.cross_entropy(outputs, labels, reduction="none"))


def test_students_at_the_end_change_what_is_released_and_nothing_before():
    plain, students = trained(simulation()), trained(simulation(release=shoal.Distillation(steps=200)))
    unchanged = ["round", "cluster", "clients", "risk"]
    assert students.rounds[unchanged].equals(plain.rounds[unchanged])
    assert students.state.models.equal(plain.state.models)
    assert not students.models[0]["output.weight"].equal(plain.models[0]["output.weight"])
    assert abs(students.summary.overall["accuracy.overall"] - plain.summary.overall["accuracy.overall"]) < 0.1


def test_a_student_knows_no_label_of_the_public_examples():
    own = federation()
    relabelled = replace(own, shadow=replace(own.shadow, y=2 - own.shadow.y))
    release = shoal.Distillation(steps=50)
    one, other = (trained(simulation(data, release=release)).models[0]["output.weight"] for data in (own, relabelled))
    assert one.equal(other)


def test_clients_are_sent_students_where_every_round_is_distilled():
    settings = shoal.Distillation(distil="round", steps=30)
    students = simulation(release=settings)
    with shoal.EngineSettings().engine(students.setup.model) as engine:
        training = students.on(engine)
        first, _ = training.round(training.start())
        plain, _ = replace(training, release=None).round(training.start())
        stream = training.stream("round", 1, "release")
        assert first.models.equal(settings.release_models(plain.models, training.federation, engine, stream))
        assert not first.models.equal(plain.models)


def test_an_average_is_of_the_last_rounds_and_changes_no_training():
    plain, rounds = simulation(federation(shadow=0)), []
    with shoal.EngineSettings().engine(plain.setup.model) as engine:
        training = plain.on(engine)
        rounds = [state.models for state, _ in training.rounds(training.start(), 3)]
    expected = rounds[0]
    for number, models in enumerate(rounds[1:], start=2):
        expected = expected + (models - expected) / min(number, 2)
    averaged = trained(replace(plain, release=shoal.Distillation(distil="never", average=2)))
    assert averaged.state.models.equal(rounds[-1])
    found = torch.stack([averaged.models[k]["output.weight"].flatten() for k in range(2)])
    torch.testing.assert_close(found, expected[:, : found.shape[1]])
    mean = trained(replace(plain, release=shoal.Distillation(distil="never", average=9))).models[0]["output.weight"]
    torch.testing.assert_close(mean.flatten(), torch.stack(rounds).mean(dim=0)[0, : found.shape[1]])


def test_where_public_examples_span_everything_a_linear_student_agrees_with_its_teacher():
    own = simulation(release=shoal.Distillation(steps=1500, batch_size=60, learning_rate=1.0))
    plain, students = trained(simulation()), trained(own)
    x = own.federation.test.x
    for k in range(2):
        outputs = []
        for result in (plain, students):
            network = own.model.network()
            network.load_state_dict(result.models[k])
            outputs.append(functional.softmax(network(x), dim=1))
        assert (outputs[0] - outputs[1]).abs().mean() < 0.02


@pytest.mark.parametrize("distil", ["end", "round"])
def test_an_audit_attacks_students_and_retrains_them(distil, tmp_path):
    release = shoal.Distillation(distil=distil, steps=30)
    result = trained(simulation(release=release, reference_federations=2), tmp_path / "run")
    audit = result.audit(references=2)
    assert "trajectory" not in audit.omitted
    assert audit.members > 0


@pytest.mark.parametrize("distil", ["end", "round", "never"])
def test_a_run_resumes_and_is_prolonged_to_the_same_bits(distil, tmp_path):
    release = shoal.Distillation(distil=distil, steps=30, average=2)
    shorter = replace(simulation(release=release), rounds=2)
    trained(shorter, tmp_path / "run")
    longer = shoal.Run(simulation(release=release), tmp_path / "run").train(resume=True)
    uninterrupted = trained(simulation(release=release))
    assert longer.state.models.equal(uninterrupted.state.models)
    assert longer.models[1]["output.weight"].equal(uninterrupted.models[1]["output.weight"])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: simulation(federation(shadow=0), release=shoal.Distillation()), "'release' needs a shadow set"),
        (lambda: simulation(release="end"), "'release' must be a Distillation"),
        (lambda: shoal.Distillation(distil="never"), "no effect"),
    ],
)
def test_a_release_of_nothing_is_refused(make, said):
    with pytest.raises(InputError, match=said):
        make()


def test_a_regression_is_distilled_by_its_own_loss():
    def targets(count, seed):
        x = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
        return x, x.sum(dim=1)

    own = shoal.Federation.from_tensors(
        [targets(10, i) for i in range(3)], test=targets(20, 8), shadow=targets(40, 9), task="regression"
    )
    model = shoal.Model(lambda: torch.nn.Linear(2, 1), shoal.squared_error)
    release = shoal.Distillation(steps=300)
    result = trained(shoal.Simulation(own, model, shoal.FedAvg(), shoal.LocalSGD(epochs=20), rounds=3, release=release))
    torch.testing.assert_close(result.models[0]["weight"], torch.ones(1, 2), atol=0.05, rtol=0)
