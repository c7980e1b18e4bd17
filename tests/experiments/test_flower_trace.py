"""The Flower app that writes a trace: its clients and its strategy, without Flower's processes."""

from types import SimpleNamespace

import pytest

from experiment_scripts import experiment_script
from shoal.runs.audits.audit_members import audit_trace

flwr = pytest.importorskip("flwr.common")


def test_the_server_of_a_flower_app_recognises_its_clients_records(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.reports.audit.audit_page.audit_page", lambda *_, **__: "")
    app = experiment_script("federation/flower_trace")
    strategy = app.strategy(tmp_path)
    parameters = strategy.initial_parameters
    clients = [app.Client(number) for number in range(app.CLIENTS)]
    for number in (1, 2):
        strategy.before = app.flat(parameters)
        results = []
        for client in clients:
            sent, examples, metrics = client.fit(flwr.parameters_to_ndarrays(parameters), {})
            fitted = SimpleNamespace(
                parameters=flwr.ndarrays_to_parameters(sent), num_examples=examples, metrics=metrics
            )
            results.append((None, fitted))
        parameters, _ = strategy.aggregate_fit(number, results, [])
    flat = audit_trace(tmp_path).flat
    assert flat["attacks.span.all.auc"] == 1.0
    assert flat["attacks.fedmia-ii.all.auc"] < 0.7
    assert flat["views.server.all.attack"] == "span"
    assert 0.5 < flat["attacks.span-models.all.auc"] < 1.0
