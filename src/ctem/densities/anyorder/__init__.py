"""The any-order density: one network that knows ρ(x_j | x_V) for every column j and every visible set V.

Data flows: ``inputs`` (what a visible set looks like) → ``network`` → ``labels`` and ``numbers`` (normalised
conditionals of single columns) → ``conditionals`` → ``ctem.densities.chain``. ``objective`` trains it, ``orders``
chooses orders of the columns, ``shrinking`` how far the network is believed (``worth``), ``fitting`` does all of it in
one call, and ``density`` answers.
"""

from ctem.densities.anyorder.conditionals import AtLevel, NumberDensity
from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.anyorder.fitting import fit_anyorder
from ctem.densities.anyorder.network import AnyOrderNet
from ctem.densities.anyorder.objective import HiddenColumns
from ctem.densities.anyorder.settings import Settings

__all__ = [
    "AnyOrderDensity",
    "AnyOrderNet",
    "AtLevel",
    "HiddenColumns",
    "NumberDensity",
    "Settings",
    "fit_anyorder",
]
