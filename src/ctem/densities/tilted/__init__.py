"""A density that can be drawn from, tilted by an energy that was learned against its draws."""

from ctem.densities.tilted.density import TiltedDensity
from ctem.densities.tilted.energy import Energy, fit_energy
from ctem.densities.tilted.networks import Networks
from ctem.densities.tilted.plan import Base, Pace, Plan
from ctem.densities.tilted.trees import Trees

__all__ = ["Base", "Energy", "Networks", "Pace", "Plan", "TiltedDensity", "Trees", "fit_energy"]
