"""Tables: any library's rows in, encoded rows out, and answers back in the user's units.

    table → frames (natives, arrow, cells) → schema (inference, codecs, curves, rulers) → x
    x, Density → answers, conditionals → cells → frames → table

``files`` and ``streams`` do the same for files, a bounded number of rows at a time.
"""
