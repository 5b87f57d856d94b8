"""
The package as somebody else has it: from a wheel, and from nothing.
"""
