"""Saved models: one ``.ctem`` file, which is a safetensors file with a JSON header.

One file rather than a folder, because a file can be replaced atomically (``atomic``): a crash, a full disk or an
unwritable folder leaves the old model as it was. It holds the weights, and in its header what came in, the schema, the
orders, the history and provenance. Nothing in it is ever run, and sizes and types are checked before anything is built.

``sealed`` opens and seals files; ``models`` writes a fitted model and makes one of a file, after every check.
"""
