"""Maps from the values of one column to encoded numbers: monotone curves, ends, calendars, preferred values."""
