"""Comparison kernels: where the second point of a pair comes from."""

from ctem.matching.kernels.composite import Mixture, Product
from ctem.matching.kernels.discrete import Graph, Grid, HammingOne, Redraw, Refresh, Uniform
from ctem.matching.kernels.kernel import Comparison, Edges, Kernel
from ctem.matching.kernels.real import Gaussian, OrnsteinUhlenbeck, Sphere, mean_std

__all__ = [
    "Comparison",
    "Edges",
    "Gaussian",
    "Graph",
    "Grid",
    "HammingOne",
    "Kernel",
    "Mixture",
    "OrnsteinUhlenbeck",
    "Product",
    "Redraw",
    "Refresh",
    "Sphere",
    "Uniform",
    "mean_std",
]
