"""
The pure part of IPoIB: codecs, tables of neighbours, groups and connections, and the machine of one
interface.
"""
