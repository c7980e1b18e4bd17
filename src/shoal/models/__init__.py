"""What is trained: networks as values, the papers' architectures, and the names that configs use.

May import `core`. To add a network: write it in `networks.py` and name it in `catalog.py`.
"""

from shoal.models.catalog import MODELS, Shape, named_model
from shoal.models.dropout import NamedDropout
from shoal.models.model import Model, cross_entropy
from shoal.models.networks import MLP, VGG, DigitsCNN, FemnistCNN, Logistic, MnistCNN

__all__ = [
    "MLP",
    "MODELS",
    "VGG",
    "DigitsCNN",
    "FemnistCNN",
    "Logistic",
    "MnistCNN",
    "Model",
    "NamedDropout",
    "Shape",
    "cross_entropy",
    "named_model",
]
