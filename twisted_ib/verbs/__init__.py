"""
Verbs: the adapter without a reactor, for programs that know libibverbs and librdmacm.

C{pyverbs} has pyverbs' names: begin there.  C{c} are C libraries with rdma-core's names, for unmodified C
programs; its handlers call C{pyverbs}.  C{core} is what neither names: the loop that drives the devices while
programs wait, and the one way by which both post requests and poll completions.
"""
