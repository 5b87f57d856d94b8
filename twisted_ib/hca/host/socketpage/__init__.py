"""
Socket pages: the listeners and connections of an HCA's process in a file, for C{ib-ss} while it is busy.

C{records} is the layout, C{page} the process's side, C{reading} the command's.
"""
