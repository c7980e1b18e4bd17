"""The Adversarial Robustness Toolbox's attack on posteriors, in an environment of its own.

    python benchmarks/systems/art_side.py OUTPUTS.npz SCORES.npz SEED

OUTPUTS.npz is what `benchmarks/posterior_attack.py` writes. SCORES.npz gets, for each type of attack model, the
probability (M,) that each record of the target is a member.
"""

import sys

import numpy as np
import torch
from art.attacks.inference.membership_inference import MembershipInferenceBlackBox
from art.estimators.classification import BlackBoxClassifierNeuralNetwork

TYPES = ("lr", "rf", "nn")


def main() -> None:
    """Fit each type on the shadow models' records, with its defaults, and score the target's."""
    outputs, scores, seed = sys.argv[1:]
    # Its networks are small: more threads would wait for each other.
    torch.set_num_threads(1)
    with np.load(outputs) as file:
        given = dict(file)
    classes, inside = given["shadow_posteriors"].shape[1], given["shadow_member"]

    def none(x: np.ndarray) -> np.ndarray:
        raise RuntimeError(f"posteriors are given; nobody should ask for those of {x.shape}")

    target = BlackBoxClassifierNeuralNetwork(none, input_shape=(classes,), nb_classes=classes)
    found = {}
    for name in TYPES:
        # It takes no seed: scikit-learn and PyTorch draw from their global generators.
        np.random.seed(int(seed))  # noqa: NPY002
        torch.manual_seed(int(seed))
        attack = MembershipInferenceBlackBox(target, attack_model_type=name)
        attack.fit(
            y=given["shadow_labels"][inside],
            test_y=given["shadow_labels"][~inside],
            pred=given["shadow_posteriors"][inside],
            test_pred=given["shadow_posteriors"][~inside],
        )
        found[name] = attack.infer(
            None, given["target_labels"], pred=given["target_posteriors"], probabilities=True
        ).reshape(-1)
    np.savez(scores, **found)


if __name__ == "__main__":
    main()
