"""Plain PyTorch: one model trained on all the clients' images, in batches, with every core and no clients at all.

How fast that is depends on how the images lie in memory, which ``--layout`` says (`networks.CNN`).

    python benchmarks/systems/torch_side.py fedavg-cnn --layout onednn --random-data
"""

import torch
from clock import Clock, tell
from networks import build
from torch.nn import functional
from work import LEARNING_RATE, chosen, load, parser


def main() -> None:
    """Train for the rounds asked for, one epoch each, and print the JSON."""
    options = parser(__doc__ or "", threads=0)
    options.add_argument("--layout", default="nchw", choices=("nchw", "channels-last", "pooled", "onednn"))
    arguments = options.parse_args()
    work = chosen(arguments)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    x, y = (torch.from_numpy(array) for array in load(work, arguments.data))
    network = build(work, arguments.layout)
    if arguments.layout in {"channels-last", "pooled"}:
        x = x.to(memory_format=torch.channels_last)
        network = network.to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(network.parameters(), LEARNING_RATE)
    clock = Clock(arguments.began)
    clock.start()
    for _ in range(arguments.rounds + 1):
        for _ in range(work.passes):
            for rows in torch.randperm(len(y)).split(work.batch or work.examples):
                optimiser.zero_grad()
                functional.cross_entropy(network(x[rows]), y[rows]).backward()
                optimiser.step()
        clock.lap()
    threads = torch.get_num_threads()
    tell("torch", arguments.work, work.images, clock, layout=arguments.layout, threads=threads, torch=torch.__version__)


if __name__ == "__main__":
    main()
