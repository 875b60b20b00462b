"""Samplers: Markov chains that leave ρ ∝ exp f invariant, for any log-potential f."""

from ctem.samplers.composite import Adapted, Alternate, MetropolisHastings
from ctem.samplers.contract import Info, Sampler
from ctem.samplers.discrete import (
    Differences,
    DiscreteLangevin,
    Gibbs,
    GibbsWithGradients,
    exact_differences,
    gradient_differences,
)
from ctem.samplers.langevin import MALA, Langevin
from ctem.samplers.run import Annealed, Run, anneal, run

__all__ = [
    "MALA",
    "Adapted",
    "Alternate",
    "Annealed",
    "Differences",
    "DiscreteLangevin",
    "Gibbs",
    "GibbsWithGradients",
    "Info",
    "Langevin",
    "MetropolisHastings",
    "Run",
    "Sampler",
    "anneal",
    "exact_differences",
    "gradient_differences",
    "run",
]
