"""Energy matching, as the paper has it: where comparison points come from, and what a comparison costs.

``kernels`` and ``noise`` make the pairs, ``losses`` and ``spacetime`` what a pair costs, and ``connectivity`` tests
whether the pairs of a kernel identify the density on the observed rows.
"""
