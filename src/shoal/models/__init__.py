"""What is trained: networks as values, the papers' architectures, and the names that configs use.

May import `core`. To add a network: write it in `networks.py` (texts: `recurrent.py`) and name it in `catalog.py`.
"""

from shoal.models.catalog import FILTERS, HIDDEN, MODELS, Shape, TextShape, named_model
from shoal.models.dropout import NamedDropout
from shoal.models.model import Model, cross_entropy
from shoal.models.networks import MLP, VGG, DigitsCNN, FacesCNN, FemnistCNN, Logistic, MnistCNN
from shoal.models.recurrent import ReviewGRU

__all__ = [
    "FILTERS",
    "HIDDEN",
    "MLP",
    "MODELS",
    "VGG",
    "DigitsCNN",
    "FacesCNN",
    "FemnistCNN",
    "Logistic",
    "MnistCNN",
    "Model",
    "NamedDropout",
    "ReviewGRU",
    "Shape",
    "TextShape",
    "cross_entropy",
    "named_model",
]
