"""What is compared with what, and which ratios are aimed at."""

from dataclasses import dataclass
from typing import Literal

Environment = Literal["shoal", "pfl", "flower", "blazefl"]


@dataclass(frozen=True)
class Side:
    """One competitor in a row.

    Args:
        label: its name in the tables, unique in its row.
        script: of `benchmarks/systems`, without ".py".
        arguments: the script's, beginning with the work.
        environment: whose packages it needs.
        processes: how many PyTorch starts; above 1, by `torch.distributed.run`.
        times: rounds of this side for each of the row's, where a round takes milliseconds.
    """

    label: str
    script: str
    arguments: tuple[str, ...]
    environment: Environment = "shoal"
    processes: int = 1
    times: int = 1


@dataclass(frozen=True)
class Goal:
    """A bound on one ratio.

    Args:
        measure: "speed": ``against``'s seconds a round over ``side``'s, at least ``bound``. "memory", "image" and
            "share" are at most ``bound``: ``side``'s peak over ``against``'s, its seconds an image over
            ``against``'s, and ``part``'s share of its own time.
        side: label of the side that the goal is for.
        bound: see ``measure``.
        against: labels; the fastest of them counts.
        part: "choose", "train" or "red_team".
    """

    measure: Literal["speed", "memory", "image", "share"]
    side: str
    bound: float
    against: tuple[str, ...] = ()
    part: str = ""


@dataclass(frozen=True)
class Row:
    """Sides that do the same work, taken in turn.

    Args:
        name: on the command line.
        title: above its table.
        sides: the first is the one that others are divided by.
        goals: what is aimed at.
        most_rounds: an upper limit on the rounds of a repeat, for long ones.
        rounds: exactly these, whatever was asked for.
        cuda: whether it needs a GPU.
    """

    name: str
    title: str
    sides: tuple[Side, ...]
    goals: tuple[Goal, ...]
    most_rounds: int | None = None
    rounds: int | None = None
    cuda: bool = False

    def rounds_of(self, side: Side, asked: int) -> int:
        """Rounds of a side that are counted in a repeat, of ``asked``."""
        return self.rounds or min(asked, self.most_rounds or asked) * side.times


def _shoal(label: str, work: str, *more: str, times: int = 1) -> Side:
    return Side(label, "shoal_side", (work, *more), times=times)


def _blazefl(label: str, work: str, *more: str) -> Side:
    return Side(label, "blazefl_side", (work, *more), "blazefl")


def _pfl(work: str, *more: str, label: str = "pfl", processes: int = 1, times: int = 1) -> Side:
    return Side(label, "pfl_side", (work, *more), "pfl", processes, times)


_LAYOUTS = {
    "PyTorch, NCHW": "nchw",
    "PyTorch, channels last": "channels-last",
    "PyTorch, channels last, pooled first": "pooled",
    "PyTorch, oneDNN's layout, pooled first": "onednn",
}
_CUDA = ("--device", "cuda")

ROWS = (
    Row(
        "fedavg-cnn",
        "FedAvg, MNIST CNN, 200 clients x 50 Fashion-MNIST images, batch 50, 1 epoch",
        (
            _shoal("Shoal fp32", "fedavg-cnn"),
            _shoal("Shoal bf16", "fedavg-cnn", "--precision", "bf16"),
            _pfl("fedavg-cnn"),
            _pfl("fedavg-cnn", label="pfl, 2 processes", processes=2),
            _pfl("fedavg-cnn", "--precision", "bf16", label="pfl bf16"),
            Side("Flower", "flower_side", ("fedavg-cnn",), "flower"),
            *(Side(label, "torch_side", ("fedavg-cnn", "--layout", name)) for label, name in _LAYOUTS.items()),
        ),
        (
            Goal("speed", "Shoal fp32", 2.0, ("pfl",)),
            Goal("speed", "Shoal fp32", 8.0, ("Flower",)),
            Goal("speed", "Shoal fp32", 1.25, tuple(_LAYOUTS)),
            Goal("speed", "Shoal bf16", 3.0, ("pfl",)),
        ),
    ),
    Row(
        "small-mlp",
        "FedAvg, MLP 64-32-10, 100 clients x 20 random 8x8 images, batch 10, 1 epoch",
        (
            _shoal("Shoal vmap", "small-mlp", "--backend", "vmap", times=5),
            _shoal("Shoal loop", "small-mlp", "--backend", "loop", times=5),
            _pfl("small-mlp", times=5),
        ),
        (Goal("speed", "Shoal vmap", 5.0, ("Shoal loop",)), Goal("speed", "Shoal vmap", 10.0, ("pfl",))),
    ),
    Row(
        "ifca-official",
        "IFCA's own MNIST setting on Fashion-MNIST: MLP 784-200-10, 4 rotations x 600 clients x 100 images, 4 models, "
        "10 full-batch steps",
        (_shoal("Shoal", "ifca-official"), _pfl("ifca-official", label="loop over pfl's model")),
        (Goal("speed", "Shoal", 3.0, ("loop over pfl's model",)),),
        most_rounds=3,
    ),
    Row(
        "ifca-mir",
        "IFCA-MIR at the paper's MNIST size on Fashion-MNIST: 200 clients x 250 images, shadow set 10,000, batch 20, "
        "5 epochs, risk in the fifth of five rounds",
        (_shoal("Shoal", "ifca-mir"),),
        (Goal("share", "Shoal", 0.15, part="choose"), Goal("share", "Shoal", 0.25, part="red_team")),
        rounds=5,
    ),
    Row(
        "blazefl-cnn",
        "BlazeFL's own work: FedAvg, CNN of 62,006 parameters, 100 clients x 500 random 3x32x32 images, "
        "batch 50, 5 epochs",
        (
            _shoal("Shoal", "blazefl-cnn"),
            _pfl("blazefl-cnn"),
            _pfl("blazefl-cnn", label="pfl, 2 processes", processes=2),
            Side("Flower", "flower_side", ("blazefl-cnn",), "flower"),
            _blazefl("BlazeFL, threads", "blazefl-cnn", "--pool", "threads"),
            _blazefl("BlazeFL, processes", "blazefl-cnn", "--pool", "processes"),
            Side("PyTorch, NCHW", "torch_side", ("blazefl-cnn",)),
            Side("PyTorch, channels last", "torch_side", ("blazefl-cnn", "--layout", "channels-last")),
        ),
        (
            Goal("speed", "Shoal", 8.0, ("Flower",)),
            Goal("speed", "Shoal", 2.0, ("BlazeFL, threads", "BlazeFL, processes")),
        ),
        most_rounds=2,
    ),
    Row(
        "memory",
        "Memory: IFCA, 2 models MLP 64-32-10, the same 200,000 random 8x8 images in few and in many clients",
        (_shoal("1,000 clients x 200", "memory-few"), _shoal("100,000 clients x 2", "memory-many")),
        (Goal("memory", "100,000 clients x 2", 1.3, ("1,000 clients x 200",)),),
    ),
    Row(
        "clients",
        "Time an image: FedAvg, MLP 64-32-10, 20 random 8x8 images a client, batch 10, 1 epoch",
        (_shoal("100 clients", "clients-few", times=5), _shoal("10,000 clients", "clients-many")),
        (Goal("image", "10,000 clients", 1.3, ("100 clients",)),),
    ),
    Row(
        "cuda",
        "On one GPU: the row fedavg-cnn",
        (_shoal("Shoal", "fedavg-cnn", *_CUDA), _pfl("fedavg-cnn", *_CUDA)),
        (Goal("speed", "Shoal", 10.0, ("pfl",)),),
        cuda=True,
    ),
    Row(
        "cuda-vgg",
        "On one GPU: FedAvg, VGG-11 with batch norm, 100 clients x 500 random 32x32 images, batch 50, 1 epoch",
        (_shoal("Shoal", "vgg11", *_CUDA), _pfl("vgg11", *_CUDA)),
        (),
        cuda=True,
    ),
)
