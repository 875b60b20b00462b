"""Codecs: how cells of a column become encoded numbers, and come back."""
