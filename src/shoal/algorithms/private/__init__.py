"""Algorithms made for privacy: noise or randomised answers are part of how they cluster or average."""
