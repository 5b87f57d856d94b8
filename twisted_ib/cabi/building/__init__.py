"""
Building the shared objects from the tables of all libraries.
"""

from twisted_ib.cabi.building.build import LIBRARIES, Library, libraries

__all__ = ["LIBRARIES", "Library", "libraries"]
