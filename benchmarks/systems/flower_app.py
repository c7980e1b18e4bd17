"""What a Flower client does in a round. A module of its own, which Ray's workers import and keep: what stands in the
script that is run would be sent to them anew with every message, and so would forget its images.
"""

from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from networks import build
from torch import Tensor, nn
from torch.nn import functional
from work import LEARNING_RATE, WORKS, Work, load

APP = ClientApp()


@cache
def network(work: Work) -> nn.Module:
    """This worker's network, which every message loads its parameters into."""
    return build(work)


@cache
def images(work: Work, data: str) -> tuple[Tensor, Tensor]:
    """All clients' images, read once by each worker."""
    x, y = load(work, Path(data) if data else None)
    return torch.from_numpy(x), torch.from_numpy(y)


@APP.train()
def train(message: Message, context: Context) -> Message:
    """One client's local training; the message's config names the work."""
    config = message.content["config"]
    work = WORKS[str(config["work"])]
    work = work.resized(int(config["clients"]), int(config["examples"]), random=bool(config["random"]))
    x, y = images(work, str(config["data"]))
    client = int(context.node_config["partition-id"])
    mine = slice(client * work.examples, (client + 1) * work.examples)
    x, y = x[mine], y[mine]
    net = network(work)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(net.parameters(), LEARNING_RATE)
    for _ in range(work.passes):
        for rows in torch.randperm(len(y)).split(work.batch or len(y)):
            optimiser.zero_grad()
            functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(content), reply_to=message)
