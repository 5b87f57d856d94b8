"""
What programs see of a stream, once over TCP and once over SDP, in one form and compared.

    python -m tests.suites.differential {asyncio,reactor,socket} [--only NAME] [--show]

A scenario is a small program that says what its calls return or raise, and in which order it is called back;
one that says something else over SDP is a difference.  L{known} lists what stays different, with its reason:
a difference that it does not have is a fault, and so is one that it has for no difference.
"""
