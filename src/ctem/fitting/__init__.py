"""From a table to a fitted density: ``arguments``, ``intake``, ``streaming`` (larger tables), ``learning``."""
