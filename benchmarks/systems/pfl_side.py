"""pfl: FedAvg by its own simulator, IFCA as a loop over its model class, which is all pfl offers for it.

Runs in an environment that has pfl, in one process or as torchrun starts it in several.

    python benchmarks/systems/pfl_side.py fedavg-cnn --random-data
    python -m torch.distributed.run --standalone --nproc-per-node 2 benchmarks/systems/pfl_side.py small-mlp
"""

import argparse
import os
import sys
import time

# pfl reads this when it is imported, and without it takes a GPU wherever it sees one.
os.environ["PFL_PYTORCH_DEVICE"] = sys.argv[sys.argv.index("--device") + 1] if "--device" in sys.argv else "cpu"

import numpy as np
import torch
from clock import Clock, own_peak_mib, tell
from networks import build
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.bridge import FrameworkBridgeFactory
from pfl.metrics import Metrics, StringMetricName, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.stats import MappedVectorStatistics
from torch import Tensor, nn
from torch.nn import functional
from work import LEARNING_RATE, Work, chosen, load, parser


class Net(nn.Module):
    """A network with the two methods that pfl's model class asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy of images (B, ...) and labels (B,)."""
        return functional.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """The same as a metric."""
        return {"loss": Weighted(functional.cross_entropy(self.network(x), y, reduction="sum").item(), len(y))}


def model_of(work: Work, precision: str, seed: int = 0) -> PyTorchModel:
    """The work's network as a model of pfl's, averaged by plain SGD with rate 1."""
    net = Net(build(work, seed=seed))
    return PyTorchModel(
        net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
        amp_dtype=torch.bfloat16 if precision == "bf16" else None,
    )


def users_of(work: Work, arguments: argparse.Namespace) -> list[Dataset]:
    """Every client's data set, views of tensors that are already on the device."""
    x, y = (torch.from_numpy(array).to(arguments.device) for array in load(work, arguments.data))
    pieces = zip(x.split(work.examples), y.split(work.examples), strict=True)
    return [Dataset(raw_data=[*piece], user_id=str(user)) for user, piece in enumerate(pieces)]


def training_of(work: Work) -> NNTrainHyperParams:
    """What a client does, in pfl's words."""
    return NNTrainHyperParams(
        local_num_epochs=work.passes, local_learning_rate=LEARNING_RATE, local_batch_size=work.batch
    )


def fedavg(work: Work, arguments: argparse.Namespace, clock: Clock) -> None:
    """FedAvg on pfl's simulated backend; nothing is evaluated after the round for warming up."""

    class Laps(TrainingProcessCallback):
        def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
            synchronise(arguments.device)
            clock.lap()
            return False, Metrics()

    users = users_of(work, arguments)
    model = model_of(work, arguments.precision)
    backend = SimulatedBackend(
        training_data=FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", range(len(users)))),
        val_data=None,
    )
    clock.start()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=arguments.rounds + 1,
            evaluation_frequency=10**9,
            train_cohort_size=work.clients,
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=training_of(work),
        callbacks=[Laps()],
        send_metrics_to_platform=False,
    )


def ifca(work: Work, arguments: argparse.Namespace, clock: Clock) -> None:
    """IFCA on pfl's model class: one model a cluster, so that no user's turn loads parameters but to undo training."""
    users = users_of(work, arguments)
    models = [model_of(work, arguments.precision, seed) for seed in range(work.clusters)]
    training, sgd = training_of(work), FrameworkBridgeFactory.sgd_bridge()
    loss = StringMetricName("loss")
    states = [model.get_parameters() for model in models]
    clock.start()
    for _ in range(arguments.rounds + 1):
        states = [model.get_parameters(state) for model, state in zip(models, states, strict=True)]
        sums = [{name: torch.zeros_like(value) for name, value in state.items()} for state in states]
        members = [0] * len(models)
        for user in users:
            best = int(np.argmin([model.evaluate(user)[loss].overall_value for model in models]))
            sgd.do_sgd(models[best], user, training)
            for name, difference in models[best].get_model_difference(states[best]).items():
                sums[best][name] += difference
            models[best].set_parameters(states[best])
            members[best] += 1
        for model, total, count in zip(models, sums, members, strict=True):
            if count:
                average = MappedVectorStatistics(total, weight=count)
                average.reweight(1)
                model.apply_model_update(average)
        synchronise(arguments.device)
        clock.lap()


def synchronise(device: str) -> None:
    """Wait for the GPU, if there is one at work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def summed(value: float) -> float:
    """The sum of ``value`` over the processes of a run with several."""
    if not torch.distributed.is_initialized():
        return value
    total = torch.tensor(value, dtype=torch.float64)
    torch.distributed.all_reduce(total)
    return float(total)


def main() -> None:
    """Play the rounds and print the JSON, of the first process where there are several."""
    arguments = parser(__doc__ or "", threads=0).parse_args()
    work = chosen(arguments)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    np.random.seed(0)  # noqa: NPY002 - pfl's samplers draw from the global generator
    clock = Clock(arguments.began, cpu=lambda: summed(time.process_time()))
    (fedavg if work.clusters == 1 else ifca)(work, arguments, clock)
    cuda = arguments.device.startswith("cuda")
    more = {"peak_gpu_mib": torch.cuda.max_memory_allocated() / 2**20} if cuda else {}
    peak = summed(own_peak_mib())
    if int(os.environ.get("RANK", "0")) == 0:
        tell(
            "pfl",
            arguments.work,
            work.images,
            clock,
            peak,
            precision=arguments.precision,
            processes=int(os.environ.get("WORLD_SIZE", "1")),
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            **more,
        )


if __name__ == "__main__":
    main()
