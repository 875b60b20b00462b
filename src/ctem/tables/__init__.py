"""Tables: any library's rows in, encoded rows out, and answers back in the user's units.

table or file → io → inference → encoding, schema → x
x, density → answers → io → table or file
"""
