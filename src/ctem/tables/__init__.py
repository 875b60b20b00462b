"""Tables: any library's rows in, encoded rows out, and answers back in the user's units.

table → frames → columns (inference → codecs → schema) → x
x, density → answers → frames → table
"""
