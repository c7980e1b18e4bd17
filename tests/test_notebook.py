"""What docs/use.md shows: one's own tensors and network, in a notebook."""

import pandas as pd
import pytest
import torch

import shoal


def pieces(count, shift):
    draw = torch.Generator().manual_seed(shift)
    x = torch.randn(count, 5, generator=draw)
    return x, ((x[:, shift] > 0).long())


def test_a_federation_of_own_tensors():
    federation = shoal.Federation.from_tensors(
        [pieces(20, 0) for _ in range(3)] + [pieces(20, 1) for _ in range(6)],
        groups=["few"] * 3 + ["many"] * 6,
        test=shoal.Examples(*pieces(60, 0), ["many", "few"] * 30),
        shadow=pieces(80, 1),
        threshold=0.6,
    )
    seen = []
    simulation = shoal.Simulation(
        federation,
        shoal.Model(lambda: torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))),
        shoal.IFCAMIR(shoal.IFCA(clusters=2)),
        shoal.LocalSGD(epochs=2, batch_size=5),
        rounds=4,
        red_team=shoal.RedTeam(every=2),
    )
    watch = lambda _, progress, report: seen.append((progress.state.round, report and len(report.cohort)))  # noqa: E731
    result = shoal.Run(simulation, watch=watch).train()
    assert seen == [(0, None), (1, 9), (2, 9), (3, 9), (4, 9)]
    assert isinstance(result.clients, pd.DataFrame)
    assert "train_accuracy" in result.clients
    assert len(result.rounds) == 8
    assert result.summary.by_group["few"]["accuracy"] == pytest.approx(
        result.clients.query("group == 'few'")["accuracy"].mean()
    )


def test_without_a_shadow_set_the_gap_attack_measures():
    data = [pieces(20, 0) for _ in range(4)]
    result = shoal.simulate(
        shoal.Federation.from_tensors(data, test=pieces(40, 0)),
        shoal.Model(lambda: torch.nn.Linear(5, 2)),
        shoal.FedAvg(),
        shoal.LocalSGD(steps=3),
        rounds=2,
    )
    assert set(result.clients["attack"]) == {"gap"}
    # The gap attack's non-members have the members' mix of labels, which is a little another than that of all.
    assert result.summary.by_group["all"]["mia"] == pytest.approx(result.summary.by_group["all"]["gap"], abs=0.05)
    assert repr(result).startswith("Result(")
