"""
The rules of the offload switch, in the language of C{libsdp.conf} (L{twisted_ib.configuration}).

C{policy} applies them to a port or a connection, C{configuration} reads the file again on SIGHUP.
"""
