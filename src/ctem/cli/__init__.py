r"""The command line ``ctem``: inspect, fit, score, sample, impute, outliers, report, privacy, info.

Tables are CSV, Parquet or Arrow, "-" is standard input or output, and they are read and written in batches of
``ctem.tables.io.files.BATCH`` rows, so memory does not grow with their length. Data go to standard output,
everything else to standard error. Exit codes: 0, done; 1, an error, in one line; 2, wrong usage; 130, interrupted;
143, stopped.

Numbers are those of the Python API for the same seed. What is random takes its batches from one
``numpy.random.RandomState(seed)``, so the first batch is what ``random_state=seed`` gives.
"""

from ctem.cli import commands  # noqa: F401  (they join the application when they are imported)
from ctem.cli.application import app

__all__ = ["app"]
