"""Tables of any library as ``Frame``, columns of plain NumPy arrays, and back; files, a few rows at a time."""
