"""A referee for energies: what can be certified of somebody's log-potential, in words and numbers.

``check`` takes any callable. ``potential`` makes one of a TorchEBM or ebmkit energy, a NumPy or a JAX function,
``proposal`` and ``sides`` find log Z from below and from above, ``faults`` looks for errors, ``record`` holds it.
"""

from ctem.checking.potential import from_arrays, from_energy
from ctem.checking.record import Check, Side
from ctem.checking.verdict import Budget, check

__all__ = ["Budget", "Check", "Side", "check", "from_arrays", "from_energy"]
