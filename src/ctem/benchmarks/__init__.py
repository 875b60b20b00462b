"""Densities with known truth, and distances between a model and the truth."""
