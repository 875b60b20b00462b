"""Saved models: one ``.ctem`` file, which is a safetensors file with a JSON header.

One file rather than a folder, because a file can be replaced atomically: a crash, a full disk or an unwritable folder
leaves the old model as it was. It holds the weights, and in its header what came in, the schema, the orders, the
history and provenance. Nothing in it is ever run, and sizes and types are checked before anything is built.

``writing`` saves what ``fitted`` describes; ``reading`` opens a file of any format; ``rebuilding`` makes a model of it,
after every check.
"""

from ctem.persistence.fitted import Fitted, Origin
from ctem.persistence.reading import FORMAT, MIGRATIONS, provenance
from ctem.persistence.rebuilding import load
from ctem.persistence.writing import save

__all__ = ["FORMAT", "MIGRATIONS", "Fitted", "Origin", "load", "provenance", "save"]
