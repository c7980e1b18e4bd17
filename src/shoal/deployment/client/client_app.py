"""The ClientApp: Flower's messages to `shoal.deployment.client.client_round` and back.

What goes wrong is said in the node's own log: sentences about its data, paths or budget are not the server's business.
"""

import logging
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from shoal.deployment.client.client_round import respond, respond_histograms, respond_vote
from shoal.deployment.client.node_settings import NodeSettings
from shoal.deployment.flower_records import pack_answer, pack_counts, pack_identity, pack_reply, unpack_offer
from shoal.deployment.messages import Refusal

LOG = logging.getLogger("shoal")
app = ClientApp()


@app.query("identify")
def identify(message: Message, context: Context) -> Message:
    """Say which client this node has."""

    def answer() -> RecordDict:
        settings = _settings(context)
        return pack_identity(settings.client, settings.partition)

    return _answered(message, answer)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Choose among the offered models, train one, and send it."""
    return _answered(message, lambda: pack_reply(respond(unpack_offer(message.content), _settings(context))))


@app.query("histograms")
def count(message: Message, context: Context) -> Message:
    """Send histograms of the losses of the offered model."""
    return _answered(
        message, lambda: pack_counts(respond_histograms(unpack_offer(message.content), _settings(context)))
    )


@app.query("votes")
def vote(message: Message, context: Context) -> Message:
    """Say whether the risk of the client's model is over its limit."""
    return _answered(message, lambda: pack_answer(respond_vote(unpack_offer(message.content), _settings(context))))


def _answered(message: Message, answer: Callable[[], RecordDict]) -> Message:
    """The reply, or a refusal that says nothing of the client."""
    try:
        content = answer()
    except Exception:
        LOG.exception("a message of the server could not be answered")
        content = pack_reply(Refusal("the client could not answer; its own log says why"))
    return Message(content=content, reply_to=message)


def _settings(context: Context) -> NodeSettings:
    """The node's settings; Flower's own simulation gives nodes a partition alone."""
    given = {key: value for key, value in context.node_config.items() if key != "num-partitions"}
    state = context.run_config.get("state-dir", "")
    if state and "state-dir" not in given:
        given["state-dir"] = f"{state}/partition-{given.get('partition-id')}"
    return NodeSettings.read(given)
