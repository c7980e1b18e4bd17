"""What a dishonest server tries at a node, and what its policy and its ledger, which never forgets, leave of it."""

import logging
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.defenses import DPSGD, accounting
from shoal.defenses.dp_sgd import NoiseShare
from shoal.engine import ClientUpdate, LocalSGD
from shoal_flower.client.client_round import histograms_reply, randomised_response, training_reply, vote_reply
from shoal_flower.client.node_data import asked_run, open_client
from shoal_flower.client.policy import Ledger, Policy
from shoal_flower.flower_config import NodeSettings
from shoal_flower.messages import REFUSED, NotAllowedError, Offer
from wire_federation import TABLE

PRIVATE = {"defenses": {"dp_sgd": {"noise_multiplier": 1.0}}}
CLUSTERS = {"algorithm": {"name": "ifca", "clusters": 2, "rounds": 3}}
HISTOGRAM = {"red_team": {"every": 1, "estimator": "histogram", "attack": "loss-threshold", "histogram_epsilon": 1.0}}
UNCHANGED = {"red_team": {"every": 1, "estimator": "histogram", "attack": "loss-threshold"}}


def an_offer(models: int = 1, number: int = 1, **tables: object) -> Offer:
    decided, simulation = build(parse_config({**TABLE, **tables}, "test"))
    rows = torch.stack([simulation.setup.model.init(Stream(k)) for k in range(models)])
    return Offer(number, 1, decided.toml(), rows, torch.full((models,), 0.5, dtype=torch.float64))


def node(folder: Path, policy: str = "", **keys: object) -> NodeSettings:
    path = folder / "policy.toml"
    path.write_text(policy)
    return NodeSettings.read({"partition-id": 1, "state-dir": str(folder / "state"), "policy": str(path), **keys})


def ledger_of(settings: NodeSettings) -> Ledger:
    return Ledger.load(settings.folder / "ledger.json")


@pytest.mark.parametrize(
    ("policy", "models", "changes", "words"),
    [
        ("questions = ['histogram']", 1, {}, "'questions' are 'histogram'; the server asks to train"),
        ("questions = ['train']", 2, CLUSTERS, "'questions' are 'train'; the server asks for a choice among 2 models"),
        ("rounds = 0", 1, {}, "'rounds' is 0; the ledger already has 0"),
        ("min_examples = 21", 1, {}, "'min_examples' is 21; this run leaves 20 to train on"),
        ("min_noise_multiplier = 1.1", 1, PRIVATE, "'min_noise_multiplier' is 1.1; the server asks for 1"),
        ("min_noise_multiplier = 1.0", 1, {}, "'min_noise_multiplier' is 1; the server asks for 0"),
        ("max_grad_norm = 0.5", 1, PRIVATE, "'max_grad_norm' is 0.5; the server asks for 1"),
        ("sampling = 'poisson'", 1, PRIVATE, "'sampling' is 'poisson'; the server asks for 'shuffled' batches"),
        ("[networks]\nlogistic = 649", 1, {}, "allow 649 parameters of 'logistic'; the server asks for 650"),
        ("[networks]\nmlp = 9999", 1, {}, "allow 0 parameters of 'logistic'; the server asks for 650"),
    ],
)
def test_what_the_policy_does_not_allow_is_refused_and_nothing_is_charged(tmp_path, policy, models, changes, words):
    settings = node(tmp_path, policy)
    with pytest.raises(NotAllowedError, match=words) as refused:
        training_reply(an_offer(models, **changes), settings)
    assert refused.value.reason == REFUSED
    assert ledger_of(settings) == Ledger()
    allowing = "rounds = 1\nmin_examples = 20\nsampling = 'any'\n[networks]\nlogistic = 650"
    assert isinstance(training_reply(an_offer(models, **changes), node(tmp_path, allowing)), ClientUpdate)


def test_a_policy_with_a_mistake_stops_the_node(tmp_path):
    with pytest.raises(InputError, match=r"policy.toml: unknown key 'round'; did you mean 'rounds'"):
        training_reply(an_offer(), node(tmp_path, "round = 3"))
    with pytest.raises(InputError, match=r"'delta' must be at most 0\.01"):
        training_reply(an_offer(), node(tmp_path, "delta = 0.9"))


def test_the_gradient_of_one_example_is_refused_without_any_policy(tmp_path):
    """One step on a batch of one example is its gradient, exactly."""
    local = {"steps": 1, "batch_size": 1, "learning_rate": 1.0}
    offer = an_offer(local=local)
    with pytest.raises(NotAllowedError, match="'min_batch_size' is 8; the server asks for batches of 1"):
        training_reply(offer, node(tmp_path))
    permissive = node(tmp_path, "min_batch_size = 1")
    gradient = offer.models[0] - training_reply(offer, permissive).end
    records = open_client(asked_run(offer.config, permissive, ())).federation.clients.x.flatten(1)
    rows = gradient[: 10 * 64].reshape(10, 64)
    # The gradient of a logistic model is a multiple of its input, which the attacker reads off.
    cosines = torch.nn.functional.cosine_similarity(rows[int(rows.norm(dim=1).argmax())][None].abs(), records)
    assert float(cosines.max()) > 0.9999
    few = an_offer(data={**TABLE["data"], "examples_per_client": 2})
    with pytest.raises(NotAllowedError, match="'min_examples' is 8; this run leaves 2 to train on"):
        training_reply(few, permissive)


@pytest.mark.parametrize("delta", [0.9, 0.1])
def test_the_servers_delta_does_not_change_what_a_spent_ledger_says(tmp_path, delta):
    budget = {"epsilon-budget": 8.0}
    settings = node(tmp_path, **budget)
    noisy = {"dp_sgd": {"noise_multiplier": 1.0, "sampling": "poisson"}}
    training_reply(an_offer(defenses=noisy), settings)
    spent = ledger_of(settings).epsilon(1e-5)
    settings = node(tmp_path, **{"epsilon-budget": spent * 1.01})
    offer = an_offer(number=2, defenses={"dp_sgd": {**noisy["dp_sgd"], "delta": delta}})
    with pytest.raises(NotAllowedError, match="the privacy budget"):
        training_reply(offer, settings)
    assert accounting.composed_epsilon([(1.0, 0.5, 2)], 0.9) == 0, "it was below 0"


def test_noise_that_the_server_calls_the_sums_is_charged_as_the_clients_share():
    """A share of 1 / sqrt(10,000) of the noise hides nothing from a server that sees the update."""
    rule = DPSGD(noise_multiplier=1.0, noise="sum", min_clients=10_000)
    local = LocalSGD(steps=1, batch_size="all", gradient_privacy=NoiseShare(rule))
    assert Ledger().after_training([local], 100).steps == ((0.01, 1.0, 1),)
    assert Ledger().after_training([local], 100).epsilon(1e-5) > 1000


@pytest.mark.parametrize(
    ("ask", "offer"),
    [
        (training_reply, an_offer(2, **CLUSTERS, **PRIVATE)),
        (training_reply, an_offer()),
        (histograms_reply, an_offer(**UNCHANGED)),
        (vote_reply, an_offer(coordinator={"l2": 0.1}, **HISTOGRAM)),
    ],
    ids=["choice", "update", "histogram", "vote"],
)
def test_a_node_with_a_budget_answers_nothing_that_has_no_finite_epsilon(tmp_path, ask, offer):
    any_answer = "histogram_epsilon = inf\nvote_epsilon = inf"
    settings = node(tmp_path, any_answer, **{"epsilon-budget": 1e6})
    with pytest.raises(NotAllowedError, match="has infinite epsilon") as refused:
        ask(offer, settings)
    assert refused.value.reason == REFUSED
    assert ledger_of(settings) == Ledger()
    ask(offer, node(tmp_path, any_answer))
    assert ledger_of(settings).epsilon(1e-5) == math.inf


def test_everything_that_leaves_is_charged_to_one_ledger_each_time_it_is_asked(tmp_path):
    settings = node(tmp_path, "choice_epsilon = 0.25", **{"epsilon-budget": 100.0})
    training, histogram = an_offer(2, **CLUSTERS, **PRIVATE), an_offer(**HISTOGRAM)
    vote = an_offer(**HISTOGRAM, coordinator={"l2": 0.1, "vote_epsilon": 0.5})
    for ask, offer in ((training_reply, training), (histograms_reply, histogram), (vote_reply, vote)) * 2:
        ask(offer, settings)
    ledger = ledger_of(settings)
    assert ledger.steps == ((1.0, 0.5, 4),)
    assert ledger.answers == (("choice", 0.25, 2), ("histogram", 1.0, 2), ("vote", 0.5, 2))
    assert (
        accounting.composed_epsilon(ledger.steps, 1e-5)
        < ledger.epsilon(1e-5)
        <= accounting.composed_epsilon(ledger.steps, 1e-5) + 3.5
    )
    tight = node(tmp_path, **{"epsilon-budget": ledger.epsilon(1e-5) + 0.2})
    with pytest.raises(NotAllowedError, match=r"the privacy budget .* after a vote of round 1"):
        vote_reply(vote, tight)
    assert ledger_of(settings) == ledger


def test_many_pure_answers_cost_less_than_their_sum_and_never_less_than_the_exact_divergence():
    ledger = Ledger()
    for _ in range(200):
        ledger = ledger.after_answer("vote", 0.1)
    stated = ledger.epsilon(1e-5)
    assert stated < 200 * 0.1
    # Randomised response exactly: the log ratio is +-epsilon, so delta(epsilon) is a sum over a binomial.
    n, eps, p = 200, 0.1, 1 / (1 + math.exp(-0.1))
    ratios = [(eps * (2 * k - n), math.comb(n, k) * p**k * (1 - p) ** (n - k)) for k in range(n + 1)]
    delta = sum(mass * max(0.0, 1 - math.exp(stated - ratio)) for ratio, mass in ratios)
    assert delta <= 1e-5


def made_for(target: int, x: Tensor, y: Tensor) -> Tensor:
    """A logistic model (P,) with a loss near 0 on one of the records ``x`` (n, 64), and of log 10 on all others."""
    rows = torch.cat([x, torch.ones(len(x), 1)], dim=1).double()
    direction = torch.linalg.pinv(rows)[:, target] * 20
    weight, bias = torch.zeros(10, 64), torch.zeros(10)
    weight[y[target]], bias[y[target]] = direction[:-1].float(), direction[-1].float()
    return torch.cat([weight.flatten(), bias])


def test_a_model_made_for_a_record_tells_members_by_histograms_that_the_policy_refuses(tmp_path):
    plain, noisy = an_offer(**UNCHANGED), an_offer(**HISTOGRAM)
    settings = node(tmp_path, "histogram_epsilon = inf\nhistograms = 40")
    members = open_client(asked_run(plain.config, settings, ())).federation.clients
    _, simulation = build(parse_config(TABLE, "test"))
    test = simulation.federation.test
    x, y = torch.cat([members.x, test.x]).flatten(1), torch.cat([members.y, test.y])
    assert len(x) == 40

    def called_members(offer: Offer, of: NodeSettings, targets: range) -> list[bool]:
        models = (made_for(target, x, y)[None] for target in targets)
        return [bool(histograms_reply(replace(offer, models=model), of)[0, 0] > 0.5) for model in models]

    assert called_members(plain, settings, range(40)) == [True] * 20 + [False] * 20, "the attack works"
    default = NodeSettings.read({"partition-id": 1, "state-dir": str(tmp_path / "other")})
    with pytest.raises(
        NotAllowedError, match="'histogram_epsilon' is 1; the server asks for a histogram without noise"
    ):
        called_members(plain, default, range(1))
    with pytest.raises(NotAllowedError, match="'histograms' is 5, and the ledger has 5"):
        called_members(noisy, default, range(40))
    answers = called_members(noisy, node(tmp_path, "histograms = 99"), range(40))
    assert 0 < sum(answers[:20]) < 20
    assert ledger_of(default).answers == (("histogram", 1.0, 5),)


def test_votes_do_not_give_the_threshold_away(tmp_path):
    """Fourteen true votes are fourteen bits of it."""
    settings = node(tmp_path, "vote_epsilon = inf\nvotes = 14", threshold=0.7312)
    truly = an_offer(**HISTOGRAM, coordinator={"l2": 0.1})

    def bisected(offer: Offer, of: NodeSettings, votes: int) -> float:
        low, high = 0.5, 1.0
        for _ in range(votes):
            middle = (low + high) / 2
            over = vote_reply(replace(offer, risks=torch.tensor([middle], dtype=torch.float64)), of)
            low, high = (low, middle) if over else (middle, high)
        return (low + high) / 2

    assert abs(bisected(truly, settings, 14) - 0.7312) < 1e-4
    with pytest.raises(NotAllowedError, match="'vote_epsilon' is 1; the server asks for a vote without noise"):
        bisected(truly, NodeSettings.read({"partition-id": 1, "state-dir": str(tmp_path / "other")}), 1)
    noisy = an_offer(**HISTOGRAM, coordinator={"l2": 0.1, "vote_epsilon": 1.0})
    with pytest.raises(NotAllowedError, match="'votes' is 5, and the ledger has 5"):
        bisected(noisy, node(tmp_path, "votes = 5", **{"state-dir": str(tmp_path / "third")}), 6)


def test_what_the_votes_of_a_node_without_a_policy_tell_of_its_limit():
    """The best an attacker can do: each vote about the median of what it believes of the limit, by Bayes' rule."""
    coins, grid, errors = np.random.default_rng(0), np.linspace(0.5, 1.0, 501), list[float]()
    true = 1 / (1 + math.exp(-Policy().vote_epsilon))
    for limit in coins.uniform(0.5, 1.0, 2000):
        belief = np.full(501, 1 / 501)
        for _ in range(Policy().votes):
            asked = grid[np.searchsorted(belief.cumsum(), 0.5)]
            over = (asked > limit) == (coins.random() < true)
            belief *= np.where((asked > grid) == over, true, 1 - true)
            belief /= belief.sum()
        errors.append(abs(grid[np.searchsorted(belief.cumsum(), 0.5)] - limit))
    assert np.mean(errors) == pytest.approx(0.068, abs=0.003), "and 0.125 without any vote"


def test_a_randomised_choice_has_the_stated_odds_and_its_model_is_trained(tmp_path):
    coins, epsilon = np.random.default_rng(0), 1.0
    counts = Counter(randomised_response(1, 3, epsilon, coins) for _ in range(20_000))
    shares = np.array([counts[k] / 20_000 for k in range(3)])
    odds = math.exp(epsilon) / (math.exp(epsilon) + 2)
    np.testing.assert_allclose(shares, [(1 - odds) / 2, odds, (1 - odds) / 2], atol=0.012)
    local = {"local": {"epochs": 1, "batch_size": 10, "learning_rate": 1e-6}}
    offer, chosen = an_offer(2, **CLUSTERS, **local), set[int]()
    for turn in range(12):
        update = training_reply(offer, node(tmp_path, "choice_epsilon = 1e-6", **{"client": f"c{turn}"}))
        assert torch.allclose(update.end, offer.models[update.cluster], atol=1e-4)
        chosen.add(update.cluster)
    assert chosen == {0, 1}, "equal with a probability of 2^-11"


def test_a_client_stays_with_its_choice_for_some_rounds_and_pays_once(tmp_path):
    settings = node(tmp_path, "choice_epsilon = 1.0\nchoice_every = 3")
    offer = an_offer(2, **CLUSTERS, **PRIVATE)
    replies = [training_reply(replace(offer, round=number), settings) for number in (1, 1, 2, 9, 9, 9)]
    clusters = [reply.cluster for reply in replies]
    assert len({*clusters[:3]}) == len({*clusters[3:]}) == 1
    ledger = ledger_of(settings)
    assert (ledger.rounds, ledger.answers) == (6, (("choice", 1.0, 2),))
    training_reply(an_offer(2, **CLUSTERS, **PRIVATE, seed=9), settings)
    assert ledger_of(settings).number_of("choice") == 3, "another run is another choice"


def test_a_ledger_that_went_back_to_an_older_copy_stops_the_client(tmp_path):
    settings, offer = node(tmp_path), an_offer(**PRIVATE)
    path, copies = settings.folder / "ledger.json", list[str]()
    for number in (1, 2, 3):
        training_reply(replace(offer, round=number), settings)
        copies.append(path.read_text())
    seen = Ledger.load(path).stamp
    assert seen[0] == 3
    path.write_text(copies[0])
    assert Ledger.load(path).epsilon(1e-5) < Ledger(steps=((1.0, 0.5, 6),)).epsilon(1e-5), "it counts too little"
    asked = replace(offer, round=4, ledger=seen)
    with pytest.raises(InputError, match=r"has seen 3 charges, and the file has others .1."):
        training_reply(asked, settings)
    # Also where it was charged as often again since, and so has as many.
    for number in (2, 3):
        training_reply(replace(offer, round=number), settings)
    with pytest.raises(InputError, match=r"has others \(3\)"):
        training_reply(asked, settings)
    path.unlink()
    for ask in (training_reply, histograms_reply):
        with pytest.raises(InputError, match=r"has seen 3 charges, and the file has none"):
            ask(replace(asked, config=an_offer(**PRIVATE, **HISTOGRAM).config), settings)
    assert not path.exists(), "it does not begin anew"
    path.write_text(copies[2])
    assert isinstance(training_reply(asked, settings), ClientUpdate)


@pytest.mark.parametrize("lie", [(0, ""), (1, None), (2, "0" * 32), (99, "0" * 32)], ids=str)
def test_a_server_that_lies_about_the_ledger_can_stop_the_client_and_nothing_else(tmp_path, lie):
    settings, offer = node(tmp_path), an_offer(**PRIVATE)
    for number in (1, 2):
        training_reply(replace(offer, round=number), settings)
    before = ledger_of(settings)
    lied = replace(offer, round=3, ledger=(lie[0], before.chain[0] if lie[1] is None else lie[1]))
    if lie[0] < 2:
        training_reply(lied, settings)
        assert ledger_of(settings).stamp[0] == 3, "an earlier charge, or none, changes nothing"
    else:
        with pytest.raises(InputError, match="restore the newest ledger"):
            training_reply(lied, settings)
        assert ledger_of(settings) == before


def test_a_ledger_whose_numbers_were_changed_stops_the_client(tmp_path):
    settings, offer = node(tmp_path), an_offer(**PRIVATE)
    training_reply(offer, settings)
    path = settings.folder / "ledger.json"
    path.write_text(path.read_text().replace('"rounds": 1', '"rounds": 0'))
    with pytest.raises(InputError, match="its last hash does not match its charges; restore"):
        training_reply(replace(offer, round=2), settings)


def test_hashes_of_equal_ledgers_differ_so_that_they_tell_nothing_of_the_charges():
    assert Ledger().after_answer("vote", 1.0).stamp[1] != Ledger().after_answer("vote", 1.0).stamp[1]


def test_the_log_says_what_was_refused_and_the_server_only_that_it_was(tmp_path, caplog):
    from flwr.app import Context, Message, RecordDict  # noqa: PLC0415
    from flwr.supercore.task_identity import TaskIdentity  # noqa: PLC0415

    from shoal_flower.client import client_app  # noqa: PLC0415
    from shoal_flower.wire_codec import pack_offer, unpack_refusal, unpack_stamp  # noqa: PLC0415

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 7
    config = {"partition-id": 1, "state-dir": str(tmp_path), "policy": str(tmp_path / "policy.toml")}

    def answer(question: str, handler) -> RecordDict:
        message = Message(content=pack_offer(an_offer(**HISTOGRAM)), dst_node_id=7, message_type=question)
        context = Context(run_id=1, node_id=7, node_config=config, state=RecordDict(), run_config={})
        return handler(message, context).content

    with caplog.at_level(logging.WARNING, "shoal"):
        (tmp_path / "policy.toml").write_text("questions = ['train']")
        assert unpack_refusal(answer("query.features", client_app.features)) is not None
        (tmp_path / "policy.toml").write_text("min_noise_multiplier = 2.5")
        refusal = unpack_refusal(answer("train", client_app.train))
    assert refusal is not None
    assert refusal.reason == REFUSED
    assert "refused: the policy's 'min_noise_multiplier' is 2.5; the server asks for 0" in caplog.text
    assert "the server asks to store a feature map" in caplog.text
    histograms = answer("query.histograms", client_app.count)
    assert unpack_stamp(histograms) == Ledger.load(tmp_path / "ledger.json").stamp


def test_the_policy_that_the_documentation_prints_is_one(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "deployment.md").read_text(encoding="utf-8")
    (tmp_path / "policy.toml").write_text(
        page.partition("## A node's own policy")[2].split("```toml")[1].split("```")[0]
    )
    policy = Policy.read(tmp_path / "policy.toml")
    assert (policy.choice_every, policy.networks) == (10, {"logistic": 1000})
    assert len({name for name in vars(policy) if vars(policy)[name] != vars(Policy())[name]}) >= 12


def test_the_files_of_a_node_are_its_owner_s_alone_and_no_half_of_one_stays(tmp_path):
    settings = node(tmp_path, "choice_epsilon = 1.0", risk="client")
    (tmp_path / "state").mkdir(0o700)
    (tmp_path / "state" / ".ledger.json.0.unfinished").write_text("of a process that was killed")
    histogram = {**HISTOGRAM, "data": {**TABLE["data"], "holdout_examples": 10}}
    training_reply(an_offer(2, **CLUSTERS, **histogram), settings)
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file() and path.name != "lock"]
    assert {path.name for path in files} == {"ledger.json", "choice.json", "risks.csv"}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "state").rglob("run-*")} == {0o700}


NOISY = LocalSGD(epochs=2, batch_size=10, gradient_privacy=DPSGD(noise_multiplier=1.1))


def test_epsilon_is_the_accountants_over_all_rounds(tmp_path):
    ledger, path = Ledger(), tmp_path / "state" / "ledger.json"
    for _ in range(3):
        ledger = ledger.after_training([NOISY], 100)
        ledger.save(path)
        ledger = Ledger.load(path)
    assert ledger.rounds == 3
    assert ledger.epsilon(1e-5) == accounting.composed_epsilon([(1.1, 0.1, 60)], 1e-5)


def test_rounds_with_different_noise_are_composed():
    more = LocalSGD(epochs=2, batch_size=10, gradient_privacy=DPSGD(noise_multiplier=2.0))
    both = Ledger().after_training([NOISY], 100).after_training([more], 100)
    assert Ledger().after_training([NOISY], 100).epsilon(1e-5) < both.epsilon(1e-5)
    assert both.epsilon(1e-5) == accounting.composed_epsilon([(1.1, 0.1, 20), (2.0, 0.1, 20)], 1e-5)


def test_two_trainings_are_one_round_of_both_their_steps():
    personal = LocalSGD(epochs=3, batch_size=20, gradient_privacy=NOISY.gradient_privacy)
    ledger = Ledger().after_training([NOISY, personal, NOISY], 100)
    assert ledger.rounds == 1
    assert ledger.epsilon(1e-5) == accounting.composed_epsilon([(1.1, 0.1, 40), (1.1, 0.2, 15)], 1e-5)


def test_a_round_without_noise_has_no_guarantee():
    assert Ledger().epsilon(1e-5) == 0
    assert Ledger().after_training([LocalSGD(epochs=1, batch_size=10)], 100).epsilon(1e-5) == math.inf


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"steps": [[1, 2]], "answers": [], "rounds": 1, "chain": []}',
        '{"steps": [[1, 0.1, -3]], "answers": [], "rounds": 1, "chain": []}',
        '{"steps": [[1, 0.1, 3]], "answers": [], "rounds": 1, "chain": []}',
    ],
)
def test_a_damaged_ledger_stops_the_client(tmp_path, text):
    (tmp_path / "ledger.json").write_text(text)
    with pytest.raises(InputError, match="not a privacy ledger"):
        Ledger.load(tmp_path / "ledger.json")
