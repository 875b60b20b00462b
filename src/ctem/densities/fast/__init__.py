"""The fast density of ``CTEM(fast=True)``: a noise-conditional potential that scores complete rows in one pass.

``network`` is the potential, ``differences`` its conditionals, ``normalisation`` its constant, ``potential`` fits it.
"""
