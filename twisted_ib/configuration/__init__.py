"""
The configuration file: its language, C{lexer} to C{parser}, and which C{file} it is.

It stands below all that read it: devices by name (L{twisted_ib.hca.device.registry}) and the rules of the
offload switch (L{twisted_ib.reactor.rules}).
"""
