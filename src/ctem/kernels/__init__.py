"""Comparison kernels: where the second point of a pair comes from."""

from ctem.kernels.composite import Mixture, Product
from ctem.kernels.contract import Comparison, Edges, Kernel
from ctem.kernels.discrete import Graph, Grid, HammingOne, Redraw, Refresh, Uniform
from ctem.kernels.real import Gaussian, OrnsteinUhlenbeck, Sphere, mean_std

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
