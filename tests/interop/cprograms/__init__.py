"""
Programs of rdma-core and of perftest by C{ib-run} against the same programs on a real kernel, both roles: the
table of L{tests.cprograms}.

All of them take minutes: the suite has those of L{rxe.SHORT}.  All, and each as often as wanted, run by::

    python -m tests.interop.cprograms.repeat --times 10
"""
