"""One energy on any space, as an object: fit, log Z, log-density, samples, a file. See :class:`EnergyModel`."""

from ctem.energy_model.defaults import RULES, default_kernel, default_net, default_recipe
from ctem.energy_model.drawing import Draws
from ctem.energy_model.model import EnergyModel, Look

__all__ = ["RULES", "Draws", "EnergyModel", "Look", "default_kernel", "default_net", "default_recipe"]
