"""Samplers: Markov chains that leave ρ ∝ exp f invariant, for any log-potential f."""

from ctem.samplers.annealed import AnnealedBits, anneal_bits
from ctem.samplers.bits import BitState, BitTarget, FlipJump, LangevinFlips, Move, PathFlips
from ctem.samplers.clusters import BlockFlips, ClusterFlips, Couplings, find_couplings
from ctem.samplers.composite import Adapted, Alternate, MetropolisHastings
from ctem.samplers.discrete import (
    DifferenceRule,
    DiscreteLangevin,
    Gibbs,
    GibbsWithGradients,
    exact_differences,
    gradient_differences,
)
from ctem.samplers.exchange import Independence, ReplicaExchange
from ctem.samplers.langevin import MALA, Langevin
from ctem.samplers.persistent import PersistentDivergence
from ctem.samplers.reverse import Denoise, Renoise, denoise_bits
from ctem.samplers.run import Annealed, Run, anneal, run
from ctem.samplers.sampler import Info, Sampler

__all__ = [
    "MALA",
    "Adapted",
    "Alternate",
    "Annealed",
    "AnnealedBits",
    "BitState",
    "BitTarget",
    "BlockFlips",
    "ClusterFlips",
    "Couplings",
    "Denoise",
    "DifferenceRule",
    "DiscreteLangevin",
    "FlipJump",
    "Gibbs",
    "GibbsWithGradients",
    "Independence",
    "Info",
    "Langevin",
    "LangevinFlips",
    "MetropolisHastings",
    "Move",
    "PathFlips",
    "PersistentDivergence",
    "Renoise",
    "ReplicaExchange",
    "Run",
    "Sampler",
    "anneal",
    "anneal_bits",
    "denoise_bits",
    "exact_differences",
    "find_couplings",
    "gradient_differences",
    "run",
]
