"""A space-time potential: one of noise levels, which gives the density of a complete row in one pass.

``network`` is the potential, ``differences`` its conditionals, ``normalisation`` its constant; it learns by the losses
of ``ctem.matching.spacetime``.
"""
