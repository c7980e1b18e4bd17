"""Models: network factories, the papers' architectures, and the catalog of their names.

May import `core`. To add a network, write a class in `networks.py`, and add a name to `named_models.py`.
"""

from shoal.models.features import FeatureMap, Features, Scattering
from shoal.models.layers import SeededDropout
from shoal.models.model import (
    Loss,
    Model,
    ModelMetric,
    NegativeLoss,
    accuracy,
    cross_entropy,
    metric_name,
    squared_error,
)
from shoal.models.named_models import MODELS, Network, Shape, TextShape, VectorShape, create_model
from shoal.models.networks import MLP, VGG, DigitsCNN, FacesCNN, FemnistCNN, Logistic, MnistCNN, ReviewGRU

__all__ = [
    "MLP", "MODELS", "VGG", "DigitsCNN", "FacesCNN", "FeatureMap", "Features", "FemnistCNN", "Logistic", "Loss",
    "MnistCNN", "Model", "ModelMetric", "NegativeLoss", "Network", "ReviewGRU", "Scattering", "SeededDropout",
    "Shape", "TextShape", "VectorShape", "accuracy", "create_model", "cross_entropy", "metric_name", "squared_error",
]  # fmt: skip
