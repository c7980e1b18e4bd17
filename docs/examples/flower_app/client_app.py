"""The clients. What is added for the audit: the import of shoal_flower, and the mod."""

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import CLIENTS, Net, load_data, test, train

import shoal_flower

app = ClientApp(mods=[shoal_flower.AppRecorder("/tmp/shoal-trace")])


@app.train()
def fit(message, context):
    """Train the model on the node's own digits."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = load_data(context.node_config["partition-id"])
    train(net, data, epochs=3, rate=message.content["config"]["lr"])
    metrics = MetricRecord({"num-examples": len(data.dataset)})
    return Message(content=RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    """Measure the model on digits of nobody."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = load_data(CLIENTS)
    metrics = MetricRecord({"num-examples": len(data.dataset), "accuracy": test(net, data)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
