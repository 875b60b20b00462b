"""Normalised densities of encoded rows.

``chain`` is the chain rule on one-column conditionals; ``anyorder`` learns those conditionals by a network; ``fast`` is
a potential that scores a complete row in one pass; ``pairwise`` is the paper's potential with a cross-fitted constant.
"""
