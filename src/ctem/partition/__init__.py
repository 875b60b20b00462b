"""log Z = log ∫ exp f, with an error bar: what turns a log-potential into a log-density.

Z is taken with respect to Lebesgue × counting measure on encoded rows. All weights are float64.
"""

from ctem.partition.annealed import log_z_levels
from ctem.partition.exact import log_z_enumerate, log_z_grid
from ctem.partition.log_z import LogZ
from ctem.partition.sampled import (
    Bracket,
    Proposal,
    log_z_annealed,
    log_z_bracket,
    log_z_importance,
    tilt_bracket,
)
from ctem.partition.strips import log_z_strip

__all__ = [
    "Bracket",
    "LogZ",
    "Proposal",
    "log_z_annealed",
    "log_z_bracket",
    "log_z_enumerate",
    "log_z_grid",
    "log_z_importance",
    "log_z_levels",
    "log_z_strip",
    "tilt_bracket",
]
