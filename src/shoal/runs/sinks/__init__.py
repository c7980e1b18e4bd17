"""Experiment trackers: what a run logs to TensorBoard, or to a tracker of your own."""
