"""
Unmodified C programs on the libraries of C{twisted_ib.verbs.c}: rdma-core's and perftest, as Debian has them.

Each is started twice by C{ib-run}, as a server and as its client.  On Debian::

    apt-get install gcc python3-dev libibverbs-dev librdmacm-dev libibumad-dev
    apt-get install ibverbs-utils rdmacm-utils perftest qperf iperf3
    pip install '.[c]'
    TWISTED_IB_CPROGRAMS=1 python -m twisted.trial tests.cprograms

The Python must have a shared libpython.  C{python -m tests.cprograms.repeat --times 10} runs each program
again and again, and prints how often it passed.  C{python -m tests.cprograms.programs} installs and runs all
that are tried, those of libraries too, and prints the table of docs/c-programs.md.
"""
