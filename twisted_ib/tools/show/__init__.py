"""
C{ib-devinfo} and C{ib-ss}: the devices of running processes, their listeners and connections.  Begin with
C{devinfo} and C{ss}.
"""
