"""
C{ib-run} of programs that are no Python: they get the C libraries of C{twisted_ib.verbs.c}.

C{binary} reads what a program and its libraries import of RDMA's, and says what the program gets, or by name
why it would not get the libraries.  C{view} has it find the devices where Linux has them, as C{devicefiles}
writes them.  Programs of Python find the libraries, too: C{again}.
"""
