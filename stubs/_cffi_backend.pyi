"""
What cffi gives, as far as the C libraries use it.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, overload

__version__: str

_Function = TypeVar("_Function", bound=Callable[..., object])

class _CDataBase:
    """
    A pointer, or a structure with its members: numbers, but for these, which are pointers, structures, unions
    or arrays wherever handlers use them.
    """

    context: _CDataBase
    pd: _CDataBase
    device: _CDataBase
    channel: _CDataBase
    data: _CDataBase
    send_cq: _CDataBase
    recv_cq: _CDataBase
    send_cq_channel: _CDataBase
    recv_cq_channel: _CDataBase
    qp: _CDataBase
    cq: _CDataBase
    cq_context: _CDataBase
    qp_context: _CDataBase
    srq_context: _CDataBase
    qp_base: _CDataBase
    parent_domain: _CDataBase
    td: _CDataBase
    cap: _CDataBase
    attr: _CDataBase
    ah_attr: _CDataBase
    alt_ah_attr: _CDataBase
    grh: _CDataBase
    dgid: _CDataBase
    sgid: _CDataBase
    gid: _CDataBase
    wr: _CDataBase
    rdma: _CDataBase
    atomic: _CDataBase
    ud: _CDataBase
    ah: _CDataBase
    bind_mw: _CDataBase
    bind_info: _CDataBase
    mw: _CDataBase
    mr: _CDataBase
    next: _CDataBase
    sg_list: _CDataBase
    orig_attr: _CDataBase
    cq_mod_caps: _CDataBase
    moderate: _CDataBase
    abi_compat: _CDataBase
    verbs: _CDataBase
    route: _CDataBase
    path_rec: _CDataBase
    ibaddr: _CDataBase
    param: _CDataBase
    id: _CDataBase
    listen_id: _CDataBase
    src_storage: _CDataBase
    dst_storage: _CDataBase
    conn: _CDataBase
    element: _CDataBase
    pkeys: _CDataBase
    ports: _CDataBase
    ai_src_addr: _CDataBase
    ai_dst_addr: _CDataBase
    ai_connect: _CDataBase
    iov_base: _CDataBase
    msg_iov: _CDataBase
    #: Numbers in some structures, and what is not of C is assigned to others.
    addr: Any
    event: Any
    ca_name: Any
    method_mask: Any
    ops: Any
    private_data: Any
    raw: Any
    srq: Any

    def __getattr__(self, name: str) -> int: ...
    def __setattr__(self, name: str, value: object) -> None: ...
    @overload
    def __getitem__(self, key: int) -> _CDataBase: ...
    @overload
    def __getitem__(self, key: slice) -> list[_CDataBase]: ...
    def __setitem__(self, key: int, value: object) -> None: ...
    def __add__(self, count: int) -> _CDataBase: ...
    def __len__(self) -> int: ...
    def __int__(self) -> int: ...
    def __bytes__(self) -> bytes: ...

class CType:
    """
    A type of C.
    """

    kind: str
    fields: list[tuple[str, CField]]

class Lib:
    """
    The functions and constants of a library.
    """

    IN_CLOEXEC: int
    IN_CLOSE_NOWRITE: int
    IN_CLOSE_WRITE: int
    IN_OPEN: int

    def inotify_init1(self, flags: int) -> int: ...
    def inotify_add_watch(self, fd: int, path: bytes, mask: int) -> int: ...
    def twisted_ib_own_sleep(self) -> _CDataBase: ...
    def twisted_ib_own_calls(self) -> None: ...
    def twisted_ib_polls_others(self, bits: int) -> None: ...
    def twisted_ib_epoll_create(self, flags: int) -> int: ...
    def twisted_ib_epoll_ctl(self, number: int, operation: int, fd: int, event: _CDataBase) -> int: ...
    def twisted_ib_epoll_wait(self, number: int, events: _CDataBase, most: int, timeout: int) -> int: ...
    def twisted_ib_renew(self) -> None: ...
    def twisted_ib_forget(self) -> None: ...
    def twisted_ib_fence(self) -> None: ...
    def twisted_ib_swap(self) -> int: ...
    def twisted_ib_suspend(self, queue: _CDataBase, /) -> None: ...
    def twisted_ib_look_for_handlers(self) -> None: ...
    twisted_ib_posting: _CDataBase
    def twisted_ib_recall(self, ring: _CDataBase) -> int: ...
    def twisted_ib_await(self, arrivals: _CDataBase, nanoseconds: int, /) -> int: ...
    def twisted_ib_serves_no_more(self) -> int: ...
    def twisted_ib_asker(self) -> int: ...
    twisted_ib_busy: int
    twisted_ib_in_python: int
    twisted_ib_over: int

class CField:
    """
    A member of one.
    """

    type: CType

class buffer:
    """
    Memory of C.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice) -> bytes: ...
    def __setitem__(self, part: slice, octets: bytes) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class FFI:
    """
    What cffi makes for a library.
    """

    NULL: _CDataBase
    errno: int

    def new(self, cdecl: str, init: object = ...) -> _CDataBase: ...
    def cast(self, cdecl: str, source: object) -> _CDataBase: ...
    def addressof(self, cdata: object, *members: str | int) -> _CDataBase: ...
    def buffer(self, cdata: _CDataBase, size: int = ...) -> buffer: ...
    def def_extern(
        self, name: str, *, onerror: Callable[[object, BaseException, TracebackType | None], object]
    ) -> Callable[[_Function], _Function]: ...
    def from_buffer(self, cdecl: str, source: object) -> _CDataBase: ...
    def memmove(self, target: object, source: object, size: int) -> None: ...
    def sizeof(self, cdecl: _CDataBase | str) -> int: ...
    def offsetof(self, kind: str, field: str) -> int: ...
    def string(self, cdata: _CDataBase, maxlen: int = ...) -> bytes: ...
    def typeof(self, cdecl: _CDataBase | str) -> CType: ...
