"""
RDMA under Twisted: a software HCA; SDP, RDS and messages over it; a reactor; and commands.

Modules:

  - C{aio}: an event loop whose connections and servers go through the offload switch
  - C{blocking}: blocking sockets over SDP
  - C{compilation}: marks for mypyc on classes that may be compiled
  - C{configuration}: its language, C{lexer} to C{parser}, and which C{file} it is
  - C{dask}: C{ib://} addresses for Dask
  - C{drive}: what drives devices, and what a process does when it forks or ends
  - C{errors}: the exceptions of twisted_ib, except Twisted's own
  - C{hca}: the software host channel adapter (HCA), in the words of somebody who knows TCP
  - C{interfaces}: interfaces of twisted_ib for Twisted programs
  - C{internet}: the Twisted side of every protocol on an HCA
  - C{ipoib}: IP over InfiniBand (RFC 4391, 4392, 4755)
  - C{layouts}: layouts of messages as data, and what is made of them
  - C{limits}: the limits of twisted_ib by name
  - C{metrics}: the counters of HCAs, and what they have in use
  - C{queues}: the connections and queues of C{multiprocessing}, through shared memory
  - C{rdma}: RDMA messaging for Twisted, on any reactor with C{IReactorFDSet} and C{IReactorTime}
  - C{rds}: Reliable Datagram Sockets (RDS), wire compatible with Linux, for Twisted
  - C{reactor}: the reactors C{ib} and C{ib-asyncio}
  - C{records}: classes of attrs whose constructors are made by their first objects
  - C{sdp}: The Sockets Direct Protocol (IBTA vol. 1 annex A4)
  - C{select}: the C{select} module over sockets of SDP
  - C{selectors}: the C{selectors} module over sockets of SDP
  - C{settings}: the variables and statements that this package reads, by name
  - C{socket}: the C{socket} module with streams over SDP
  - C{structs}: what C{struct.Struct} is, with the types of its fields
  - C{subnet}: an InfiniBand subnet in software
  - C{switch}: SDP for programs that call for TCP, where both ends have SDP
  - C{tools}: ib-demo, ib-get, ib-devinfo, ib-ss, ib-perf, ib-ping, ib-policy
  - C{verbs}: the adapter without a reactor, for programs that know libibverbs and librdmacm
"""

from _imp import extension_suffixes as _suffixes
from os.path import dirname as _dirname
from os.path import exists as _exists

# The shared object of all compiled modules, if there are any: mypyc's are one for all interpreters of a
# process, and are emptied when the first of them ends.
if _exists(f"{_dirname(__path__[0])}/twisted_ib__mypyc{_suffixes()[0]}"):
    try:
        # Of Python 3.13; before it had another name.
        try:
            from _interpreters import get_current as _current
            from _interpreters import get_main as _main
        except ImportError:
            from _xxsubinterpreters import get_current as _current
            from _xxsubinterpreters import get_main as _main
    except ImportError:
        # A Python that has no others.
        pass
    else:
        if _current() != _main():
            raise ImportError(
                "compiled modules of twisted_ib are for the main interpreter of a process only: for others "
                "install its pure form (pip install --no-binary twisted-ib twisted-ib)",
                name="twisted_ib",
            )

#: The modules that add a fabric to those of the adapter, which does not know them: they are above it.  It
#: imports them by name when a device is looked for; a program's own calls
#: L{addFabric<twisted_ib.hca.device.registry.addFabric>}.
PLUGINS: tuple[str, ...] = ("twisted_ib.subnet.row",)
