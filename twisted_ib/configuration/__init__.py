"""
The configuration file: its language, C{lexer} to C{parser}, and which C{file} it is.

It stands below all that read it: devices by name (L{twisted_ib.hca.device.registry}) and the rules of the
offload switch (L{twisted_ib.switch.rules}).

Besides:

  - C{patterns}: shell patterns for program names, as the C library's C{fnmatch} with no flags matches them
  - C{syntax}: the statements of a file of rules, as values
  - C{words}: the words of rules that all ask for who follow them
"""
