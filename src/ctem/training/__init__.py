"""The one training loop, for any network and any loss; its checkpoints, and what it needs of a device."""

from ctem.training.loop import Loss, train
from ctem.training.processes import Team, team, together
from ctem.training.recipe import PAPER_2D, PAPER_HIGH_D, History, Recipe

__all__ = ["PAPER_2D", "PAPER_HIGH_D", "History", "Loss", "Recipe", "Team", "team", "together", "train"]
