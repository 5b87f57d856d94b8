"""
Building the shared objects from the tables of all libraries.

Modules:

  - C{build}: building the shared objects, once for each interpreter
  - C{cache}: directories of built libraries in the cache
  - C{sharedobject}: a shared object of functions that all do the same, without a compiler
  - C{source}: the C code and the linker's version script of a table of functions
  - C{stubs}: stubs of the functions that a program imports and the libraries lack
"""

from twisted_ib.verbs.c.building.build import LIBRARIES, Library, libraries

__all__ = ["LIBRARIES", "Library", "libraries"]
