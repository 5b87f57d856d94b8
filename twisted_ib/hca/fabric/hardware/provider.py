"""
The system's libibverbs, by the package C{ibverbs}: what is used of it, and why it is not there.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from twisted_ib.errors import DeviceError

#: Where the kernel has the adapters, and where the nodes of their devices are.
ADAPTERS = "/sys/class/infiniband"
VERBS = "/sys/class/infiniband_verbs"
NODES = "/dev/infiniband"
#: In the text of this package's own libibverbs, which runs it.
_OWN = b"twisted_ib.verbs.c."
_LIBRARIES = {"libibverbs.so.1": "libibverbs1 and ibverbs-providers", "librdmacm.so.1": "librdmacm1"}


class Adapter(Protocol):
    """
    An adapter that libibverbs lists.
    """

    name: str

    def open(self) -> Any:
        """
        @return: its context.
        @raise OSError: it cannot be opened.
        """


class Completion(Protocol):
    """
    A C{WC} of the package C{ibverbs}, as struct ibv_wc.
    """

    wr_id: int
    status: int
    status_str: str
    opcode: int
    byte_len: int
    imm_data: int
    qp_num: int
    src_qp: int
    wc_flags: int


class Closed(Protocol):
    """
    An object of an adapter, as an address handle.
    """

    def close(self) -> None:
        """
        Destroy it.
        """


class AdapterQueuePair(Closed, Protocol):
    """
    A queue pair of an adapter.
    """

    qp_num: int

    def modify(self, mask: int, vector: object = None, **given: int) -> None:
        """
        Take a step.

        @raise OSError: it cannot be taken.
        """


class AdapterRegion(Closed, Protocol):
    """
    Memory that is registered with an adapter.
    """

    lkey: int


class AdapterReceives(Closed, Protocol):
    """
    A shared receive queue of an adapter.
    """

    def post_recv(self, requests: Sequence[object]) -> None:
        """
        @raise OSError: there is no room.
        """


class AdapterDomain(Closed, Protocol):
    """
    A protection domain of an adapter.
    """

    def reg_mr(self, address: int, length: int, access: int, /) -> AdapterRegion:
        """
        @raise OSError: it cannot be registered.
        """

    def create_srq(self, *, max_wr: int) -> AdapterReceives:
        """
        @raise OSError: the adapter has none.
        """


class Verbs(Protocol):
    """
    The package C{ibverbs}, which has these besides its classes and enumerations.
    """

    def get_device_list(self) -> Sequence[Adapter]:
        """
        @return: the adapters.
        @raise OSError: there is no driver for any.
        """


def howToAdd(adapter: str) -> str:
    """
    @return: what to do where an adapter is missing, for errors.
    """
    kind = "siw" if adapter.startswith("siw") else "rxe"
    return f"load its driver, or add one of software, as by rdma link add {adapter} type {kind} netdev eth0"


def isOwn(environ: Mapping[str, str]) -> bool:
    """
    @return: whether the loader finds this package's own libibverbs, as under C{ib-run}.
    """
    for folder in filter(None, environ.get("LD_LIBRARY_PATH", "").split(":")):
        try:
            with open(os.path.join(folder, "libibverbs.so.1"), "rb") as library:
                return _OWN in library.read()
        except OSError:
            continue
    return False


def loadVerbs(adapter: str) -> Verbs:
    """
    Load the package and the libraries that it needs.

    @param adapter: the name of the adapter that needs them, for errors.
    @raise DeviceError: one is missing; the text says what to do.
    """
    if isOwn(os.environ):
        raise DeviceError(
            f"adapter {adapter}: libibverbs is twisted_ib's own here, which has no hardware: run the program"
            " without ib-run"
        )
    broken: ImportError | None = None
    try:
        # On demand: a program pays for what it uses.
        import ibverbs
    except ModuleNotFoundError:
        raise DeviceError(
            f"adapter {adapter}: the extra [hardware] is not installed: pip install 'twisted-ib[hardware]'"
        ) from None
    except ImportError as error:
        # Without libibverbs it cannot be imported either.
        broken = error
    for library, package in _LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            raise DeviceError(
                f"adapter {adapter}: there is no {library}: install it, as Debian's {package}"
            ) from None
    if broken is not None:
        raise DeviceError(f"adapter {adapter}: the package ibverbs cannot be imported: {broken}")
    found: Verbs = ibverbs
    return found


def listed(verbs: Verbs) -> dict[str, Any]:
    """
    @return: the adapters that libibverbs lists, by name.
    """
    try:
        return {each.name: each for each in verbs.get_device_list()}
    except OSError:
        # ENOSYS: the kernel has no driver at all.
        return {}


def openAdapter(verbs: Verbs, adapter: str) -> Any:
    """
    Open an adapter.

    @return: its context, of the package C{ibverbs}.
    @raise DeviceError: there is none of that name, or it may not be used; the text says what to do.
    """
    there = listed(verbs)
    found = there.get(adapter)
    if found is None:
        others = f"there are {', '.join(sorted(there))}" if there else "there is none"
        raise DeviceError(f"adapter {adapter}: libibverbs does not list it, {others}: {howToAdd(adapter)}")
    try:
        return found.open()
    except OSError as error:
        if isinstance(error, PermissionError) or not _mayOpen(adapter):
            raise DeviceError(
                f"adapter {adapter}: no rights on {_nodeOf(adapter)}: become root, or a member of its group"
            ) from None
        raise DeviceError(f"adapter {adapter} cannot be opened: {error}") from None


def keep(*objects: object) -> None:
    """
    Keep objects of the adapter until the process has gone, in a forked child: each destroys, when Python
    collects it, what it stands for, and that is the parent's.
    """
    for each in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def told(error: OSError) -> str:
    """
    @return: the text of what the adapter says, with what to do where it has no memory.
    """
    if error.errno != errno.ENOMEM:
        return str(error)
    return f"{error}: the limit of locked memory (ulimit -l, RLIMIT_MEMLOCK) may be too low"


def _nodeOf(adapter: str) -> str:
    try:
        for name in sorted(os.listdir(VERBS)):
            with open(f"{VERBS}/{name}/ibdev") as text:
                if text.read().strip() == adapter:
                    return f"{NODES}/{name}"
    except OSError:
        pass
    return NODES


def _mayOpen(adapter: str) -> bool:
    return os.access(_nodeOf(adapter), os.R_OK | os.W_OK)
