"""The ground floor: parameters as rows of numbers, randomness, the one error sentence, whole files."""
