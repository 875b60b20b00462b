"""Normalised densities of encoded rows.

``chain`` is the chain rule on one-column conditionals; ``anyorder`` learns those conditionals by a network;
``spacetime`` is a potential of noise levels, which gives the density of a complete row in one pass; ``pairwise`` is our
row of the paper's Table 1: energies that tilt a normal law, cross-fitted.
"""
