"""Normalised densities of encoded rows.

``chain`` is the chain rule on one-column conditionals; ``anyorder`` learns those conditionals by a network;
``sequences`` are densities of sequences by transformers; ``tilted`` multiplies an any-order density by an energy;
``spacetime`` is a potential of noise levels, which gives the density of a complete row in one pass.
"""
