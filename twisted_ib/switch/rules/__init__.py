"""
The rules of the offload switch, in the language of C{libsdp.conf} (L{twisted_ib.configuration}).

C{policy} applies them to a port or a connection, C{configuration} reads the file again on SIGHUP.

Besides:

  - C{rulelog}: the log that C{log} statements of a file of rules ask for
  - C{sighup}: reloading the configuration of a running reactor on SIGHUP
"""
