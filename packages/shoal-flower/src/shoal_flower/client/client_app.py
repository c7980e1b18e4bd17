"""The ClientApp: Flower's messages to `shoal_flower.client.client_round` and back.

What goes wrong is said in the node's own log. The server gets one text whatever it is: of two, it would read off which
of its questions the node's data make fail.
"""

import logging
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from shoal_flower.client.client_round import histograms_reply, training_reply, vote_reply
from shoal_flower.client.ledger import LEDGER, Ledger
from shoal_flower.client.node_data import keep_features
from shoal_flower.client.policy import Policy
from shoal_flower.client.secure_client import require_plain, secure_reply
from shoal_flower.flower_config import NodeSettings
from shoal_flower.messages import REFUSED, NotAllowedError, Offer, Refusal
from shoal_flower.wire_codec import (
    pack_histograms,
    pack_identity,
    pack_kept_features,
    pack_reply,
    pack_stamp,
    pack_vote,
    unpack_features,
    unpack_offer,
)

LOG = logging.getLogger("shoal")
app = ClientApp()


@app.query("identify")
def identify(message: Message, context: Context) -> Message:
    """Name the client of this node."""
    return _reply(message, context, lambda node: pack_identity(node.name, node.partition_id))


@app.query("features")
def features(message: Message, context: Context) -> Message:
    """Keep the map of inputs to features, or the models' frozen tensors, that the server sends."""

    def keep(node: NodeSettings) -> RecordDict:
        Policy.read(node.policy).check_question("features", "to keep a map of features, or frozen tensors")
        return pack_kept_features(keep_features(node.folder, *unpack_features(message.content)))

    return _reply(message, context, keep)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Choose among the offered models, train one, and send it."""
    return _stamped(message, context, lambda offer, node: pack_reply(training_reply(offer, node)))


@app.query("histograms")
def count(message: Message, context: Context) -> Message:
    """Send histograms of the losses of the offered model."""
    return _stamped(message, context, lambda offer, node: pack_histograms(histograms_reply(offer, node)))


@app.query("votes")
def vote(message: Message, context: Context) -> Message:
    """Send whether the risk of the client's model is over its limit."""
    return _stamped(message, context, lambda offer, node: pack_vote(vote_reply(offer, node)))


@app.query("secure")
def add_up(message: Message, context: Context) -> Message:
    """Answer a question of a secure sum."""
    return _reply(message, context, lambda node: _with_stamp(secure_reply(message.content, node), node))


def _stamped(message: Message, context: Context, answer: Callable[[Offer, NodeSettings], RecordDict]) -> Message:
    """The reply to an offer of which a single client's numbers are asked, with the last charge of its ledger."""

    def reply(node: NodeSettings) -> RecordDict:
        return _with_stamp(answer(require_plain(unpack_offer(message.content), node), node), node)

    return _reply(message, context, reply)


def _with_stamp(reply: RecordDict, node: NodeSettings) -> RecordDict:
    pack_stamp(reply, Ledger.load(node.folder / LEDGER).stamp)
    return reply


def _reply(message: Message, context: Context, answer: Callable[[NodeSettings], RecordDict]) -> Message:
    """The reply by the node's settings, or a refusal that says nothing of the client."""
    try:
        config = dict(context.node_config)
        # Flower's simulation gives nodes a partition alone. Elsewhere a node's folders are not the server's business.
        if "num-partitions" in config and (folder := context.run_config.get("state-dir")):
            config.setdefault("state-dir", f"{folder}/partition-{config.get('partition-id')}")
        content = answer(NodeSettings.read(config))
    except NotAllowedError as refused:
        LOG.warning("refused: %s", refused)
        content = pack_reply(Refusal(refused.reason))
    except Exception:
        LOG.exception("a message of the server could not be answered")
        content = pack_reply(Refusal(REFUSED))
    return Message(content=content, reply_to=message)
