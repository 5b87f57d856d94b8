"""
librdmacm.so.1.  Begin with C{table}; the handlers are in the modules named by theme.
"""
