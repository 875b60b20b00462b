"""A fitted ``CTEM`` to a file and back: ``writing`` saves what ``fitted`` describes, ``rebuilding`` makes it anew."""
