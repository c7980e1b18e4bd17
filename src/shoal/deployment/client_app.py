"""The ClientApp: Flower's messages to `shoal.deployment.client` and back."""

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from shoal.core.errors import InputError
from shoal.deployment.client import respond, respond_histograms, respond_vote
from shoal.deployment.messages import Refusal
from shoal.deployment.node import NodeSettings
from shoal.deployment.records import pack_answer, pack_counts, pack_identity, pack_reply, unpack_offer

app = ClientApp()


@app.query("identify")
def identify(message: Message, context: Context) -> Message:
    """Say which client this node has."""
    settings = _settings(context)
    return Message(content=pack_identity(settings.client, settings.partition), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Choose among the offered models, train one, and send it."""
    try:
        reply = respond(unpack_offer(message.content), _settings(context))
    except InputError as error:
        reply = Refusal(str(error))
    return Message(content=pack_reply(reply), reply_to=message)


@app.query("histograms")
def count(message: Message, context: Context) -> Message:
    """Send histograms of the losses of the offered model."""
    content: RecordDict = pack_counts(respond_histograms(unpack_offer(message.content), _settings(context)))
    return Message(content=content, reply_to=message)


@app.query("votes")
def vote(message: Message, context: Context) -> Message:
    """Say whether the risk of the client's model is over its limit."""
    content: RecordDict = pack_answer(respond_vote(unpack_offer(message.content), _settings(context)))
    return Message(content=content, reply_to=message)


def _settings(context: Context) -> NodeSettings:
    """The node's settings; Flower's own simulation gives nodes a partition alone."""
    given = {key: value for key, value in context.node_config.items() if key != "num-partitions"}
    state = context.run_config.get("state-dir", "")
    if state and "state-dir" not in given:
        given["state-dir"] = f"{state}/partition-{given.get('partition-id')}"
    return NodeSettings.read(given)
