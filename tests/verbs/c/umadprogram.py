"""
A program that uses C{libibumad.so.3}, and says what comes of it: a line for each thing.
"""

from __future__ import annotations

import errno
import json
import os
import select
import struct
import time
from ctypes import (
    CDLL,
    addressof,
    byref,
    c_char,
    c_char_p,
    c_int,
    c_size_t,
    c_uint32,
    c_ulong,
    c_void_p,
    create_string_buffer,
    string_at,
)
from functools import cache
from typing import Any

#: C{struct ib_user_mad}: agent, status, length; then QPN, Q_Key, LID.
AGENT, STATUS, LENGTH, ADDRESS = 0, 4, 16, 20
SM_INFO, NODE_DESCRIPTION, PING = 0x20, 0x10, 0x32


@cache
def library() -> CDLL:
    """
    @return: the library, which those who only look at this module need not have.
    """
    loaded = CDLL("libibumad.so.3", use_errno=True)
    for name in ("umad_get_mad", "umad_get_mad_addr", "umad_get_ca_device_list"):
        getattr(loaded, name).restype = c_void_p
    for name in ("class", "method", "attribute", "common_mad_status", "sa_mad_status"):
        getattr(loaded, f"umad_{name}_str").restype = c_char_p
    loaded.umad_free_ca_device_list.argtypes = [c_void_p]
    loaded.umad_size.restype = c_size_t
    return loaded


def say(name: str, value: Any) -> None:
    """
    Write a line.
    """
    print(json.dumps([name, value]), flush=True)


def mad(class_: int, method: int, attribute: int, transaction: int, version: int = 1) -> bytes:
    """
    @return: 256 octets.
    """
    return struct.pack(">BBBBHHQHHI", 1, class_, version, method, 0, 0, transaction, attribute, 0, 0).ljust(
        256, b"\0"
    )


def received(port: int, room: int = 256, timeout: int = 10_000) -> tuple[int, int, int, int, bytes]:
    """
    @return: result, errno, length, status, octets.
    """
    head: int = library().umad_size()
    buffer, length = create_string_buffer(head + room), c_int(room)
    found = library().umad_recv(port, buffer, byref(length), timeout)
    status = struct.unpack_from("=I", buffer, STATUS)[0]
    return found, 0 if found >= 0 else -found, length.value, status, buffer.raw[head : head + length.value]


def sent(port: int, agent: int, lid: int, number: int, octets: bytes, timeout: int, retries: int = 0) -> int:
    """
    @return: the result.
    """
    head = library().umad_size()
    buffer = create_string_buffer(bytes(head) + octets, head + len(octets))
    library().umad_set_addr(buffer, lid, number, 0, 0x80010000 if number else 0)
    found: int = library().umad_send(port, agent, buffer, len(octets), timeout, retries)
    return found


def devices() -> bytes:
    """
    The devices and ports.

    @return: the GID of the port.
    """
    names = ((c_char * 20) * 4)()
    say("names", [names[index].value.decode() for index in range(library().umad_get_cas_names(names, 4))])
    guids = (c_ulong * 2)()
    say("guids", [library().umad_get_ca_portguids(None, guids, 2), guids[0], guids[1] > 0])
    say("counted", library().umad_get_ca_portguids(None, None, 0))
    say("few", library().umad_get_ca_portguids(None, guids, 1))
    none = [library().umad_get_cas_names(names, count) for count in (0, -1)]
    say("none", [*none, library().umad_get_smi_gsi_pairs(names, c_size_t(0))])
    buffer = create_string_buffer(library().umad_size())
    library().umad_set_addr(buffer, 0x1234, 5, 0x1F3, 0x80010000)
    mads = library().umad_get_mad(buffer), library().umad_get_mad_addr(buffer)
    say("mad", [each - addressof(buffer) for each in mads])
    # Queue pair, Q_Key and LID in network byte order, service level, path bits.
    say("address", buffer.raw[20:32].hex())
    # Whether there is a GRH, hop limit and traffic class, GID, flow label in network byte order.
    gid = bytes(range(16))
    library().umad_set_grh(buffer, struct.pack("=14xBB16sI8x", 7, 9, gid, 0x12345))
    say("grh", [buffer.raw[32:36].hex(), buffer.raw[36:52] == gid, buffer.raw[52:56].hex()])
    library().umad_set_grh(buffer, None)
    say("noGRH", buffer.raw[32])
    library().umad_set_pkey(buffer, 0x12345)
    say("pkey", library().umad_get_pkey(buffer))
    adapter, port = create_string_buffer(512), create_string_buffer(256)
    say("adapter", [library().umad_get_ca(b"ib0", adapter), adapter.value.decode()])
    _, kind, count, _, driver, _, node, system, *ports = struct.unpack_from("@20sIi20s40s20sQQ3P", adapter)
    own = string_at(ports[1], 20).rstrip(b"\0").decode()
    say(
        "described", [kind, count, driver.rstrip(b"\0").decode(), node == system > 0, own, ports[0], ports[2]]
    )
    say("released", [library().umad_release_ca(adapter), library().umad_release_ca(adapter)])
    say("port", library().umad_get_port(None, 0, port))
    number, lid, _, sm, _, state, physical = struct.unpack_from("=iIIIIII", port, 20)
    say("settings", [port.value.decode(), number, lid, sm, state, physical])
    fields = struct.unpack_from("@20s9i8sQIP20s", port)
    prefix, guid, keys, first, layer = fields[10:]
    say("whole", [fields[3], fields[5], fields[8], prefix.hex(), guid == guids[1]])
    say("keys", [keys > 0, string_at(first, 2).hex(), layer.rstrip(b"\0").decode()])
    say("portReleased", [library().umad_release_port(port), library().umad_release_port(port)])
    say("absent", [library().umad_get_port(b"ib0", 2, port), library().umad_open_port(b"nothing", 0)])
    pair = create_string_buffer(48)
    for name, call in (
        ("pairs", lambda: library().umad_get_smi_gsi_pairs(pair, 1)),
        ("pair", lambda: library().umad_get_smi_gsi_pair_by_ca_name(b"ib0", 1, pair, 1)),
    ):
        result, (smi, smiPort, gsi, gsiPort) = call(), struct.unpack("=20sI20sI", pair)
        say(name, [result, smi.rstrip(b"\0").decode(), smiPort, gsi.rstrip(b"\0").decode(), gsiPort])
    say("noPair", library().umad_get_smi_gsi_pair_by_ca_name(b"nothing", 1, pair, 1))
    head = c_void_p(library().umad_get_ca_device_list())
    say("sorted", [library().umad_sort_ca_device_list(byref(head), size) for size in (0, 1, 2)])
    # Another list behind this one, whose device has a name that comes later.
    late, second = create_string_buffer(b"late"), library().umad_get_ca_device_list()
    node, first = (c_void_p * 2).from_address(head.value or 0), head.value
    node[:] = second, addressof(late)
    result = library().umad_sort_ca_device_list(byref(head), 2)
    say("order", [result, head.value == second, node[0], (c_void_p * 2).from_address(second)[0] == first])
    library().umad_free_ca_device_list(head)
    library().umad_free_ca_device_list(head)
    path = create_string_buffer(64)
    result = library().umad_get_issm_path(None, 0, path, 64)
    least = len(path.value) + 1
    say("path", [result, *(library().umad_get_issm_path(None, 0, path, least - each) for each in (0, 1))])
    say("debug", [library().umad_debug(each) for each in (-1, 2, -1, 0)])
    texts = (
        library().umad_class_str(3),
        library().umad_method_str(3, 0x12),
        library().umad_attribute_str(1, 0x1100),
    )
    states = library().umad_common_mad_status_str(0x0C00), library().umad_sa_mad_status_str(3)
    say("texts", [each.decode() for each in (*texts, *states)])
    return bytes(prefix) + struct.pack("=Q", guid)


def isManager(expected: bool, seconds: float = 10.0) -> bool:
    """
    Wait until PortInfo's IsSM is so.

    @return: whether it is set.
    """
    port = create_string_buffer(256)
    end = time.monotonic() + seconds
    while True:
        library().umad_get_port(None, 0, port)
        found = bool(port[55][0] & 2)
        library().umad_release_port(port)
        if found is expected or time.monotonic() > end:
            return found
        time.sleep(0.01)


def manager() -> None:
    """
    A subnet manager that opens its file twice.
    """
    path = create_string_buffer(64)
    library().umad_get_issm_path(None, 0, path, 64)
    files = [os.open(path.value, os.O_RDWR) for _ in range(2)]
    found = [isManager(True)]
    os.close(files[0])
    found.append(isManager(False, 0.2))
    os.close(files[1])
    say("manager", [*found, isManager(False)])


def exchange(lid: int, gid: bytes) -> None:
    """
    Requests to the port with a LID, and their responses.
    """
    port = library().umad_open_port(b"ib0", 1)
    isOwn = library().umad_get_fd(port) == port
    say("open", [port >= 0, isOwn, os.get_blocking(port), os.get_inheritable(port)])
    agent = library().umad_register(port, 1, 1, 0, None)
    poll = select.poll()
    poll.register(port, select.POLLIN)
    say("early", [len(poll.poll(0)), library().umad_poll(port, 10), received(port, timeout=0)[:2]])
    say("sent", sent(port, agent, lid, 0, mad(1, 1, NODE_DESCRIPTION, 0xABCDEF0123456789), 1000, 3))
    say("ready", [len(poll.poll(10_000)), library().umad_poll(port, 10_000)])
    say("small", received(port, 100)[:3])
    found, _, length, status, octets = received(port)
    say("response", [found == agent, length, status, octets[3], octets[8:16].hex()])
    say("late", len(poll.poll(0)))
    say("lost", sent(port, agent, 0x3FF, 0, mad(1, 1, NODE_DESCRIPTION, 7), 20, 1))
    found, _, length, status, octets = received(port)
    say("timeout", [found == agent, length, status, octets[8:16].hex()])
    table = library().umad_register(port, 3, 2, 1, None)
    say("asked", sent(port, table, lid, 1, mad(3, 0x12, 0x11, 9, 2), 1000, 3))
    library().umad_poll(port, 10_000)
    found, _, length, _, _ = received(port)
    say("table", [found, length > 256])
    found, _, length, _, octets = received(port, length)
    say("records", [found == table, len(octets) == length, octets[16:18].hex()])
    routed(port, table, gid)
    other = library().umad_open_port(None, 0)
    mask = (c_ulong * 2)(1 << 1)
    pinged = library().umad_register_oui(other, PING, 0, b"\x00\x14\x05", mask)
    say("second", [other not in (port, -1), pinged, library().umad_register(port, PING, 1, 0, mask)])
    attributes = create_string_buffer(64)
    struct.pack_into("=BBxxI2QIB", attributes, 0, 1, 1, 1 << 5, 0, 0, 0, 0)
    number = c_uint32()
    say("flags", [library().umad_register2(port, attributes, byref(number)), attributes[4] == b"\1"])
    struct.pack_into("=BBxxI", attributes, 0, 1, 1, 0)
    say("register2", [library().umad_register2(port, attributes, byref(number)), number.value > agent])
    organized = []
    # A method that another agent has is refused.
    for oui, *methods in ((0, 0, 0), (1 << 24, 0, 0), (1, 0, 0), ((1 << 24) - 1, 0, 0), (1, 2, 0), (1, 0, 2)):
        struct.pack_into("=BBxxI2QIB", attributes, 0, PING, 1, 0, *methods, oui, 0)
        organized.append(library().umad_register2(port, attributes, byref(number)))
    say("organized", organized)
    asked = mad(1, 1, NODE_DESCRIPTION, 1), mad(4, 1, NODE_DESCRIPTION, 1)
    say(
        "wrong",
        [sent(port, each, lid, 0, octets, 10) for each, octets in zip((31, agent), asked, strict=True)],
    )
    say("unregistered", [library().umad_unregister(port, agent), library().umad_unregister(port, agent)])
    say("closed", [library().umad_close_port(each) for each in (other, port, port)])
    say("poll", library().umad_poll(port, 10))
    abandoned(lid)


def routed(port: int, agent: int, gid: bytes) -> None:
    """
    A request with a service level and a GRH, which comes back with them as nobody answers.
    """
    head = library().umad_size()
    buffer = create_string_buffer(bytes(head) + mad(3, 1, 1, 5, 2), head + 256)
    library().umad_set_addr(buffer, 0x3FF, 1, 0x13, 0x80010000)
    library().umad_set_grh(buffer, struct.pack("=14xBB16sI8x", 7, 9, gid, 0xF12345))
    # The longest has all segments of RMPP that this package takes.
    lengths = 0, -1, 256 + (4 << 20) + 1, 1 << 30
    say("lengths", [library().umad_send(port, agent, buffer, each, 20, 1) for each in lengths])
    say("missing", library().umad_send(port, agent, None, 256, 20, 1))
    say("routed", library().umad_send(port, agent, buffer, 256, 20, 1))
    # What the library notes there: agent, time, retries.
    found = struct.unpack_from("=IIII", buffer)
    say("noted", [found[0] == agent, *found[2:]])
    library().umad_poll(port, 10_000)
    length = c_int(256)
    say("returned", library().umad_recv(port, buffer, byref(length), 0) == agent)
    say("status", library().umad_status(buffer))
    say("way", [buffer.raw[30:36].hex(), buffer.raw[36:52] == gid, buffer.raw[52:56].hex()])


def abandoned(lid: int) -> None:
    """
    A program reads a port's descriptor itself, and closes it; a pipe of that number gets nothing.
    """
    port = library().umad_open_port(b"ib0", 1)
    agent = library().umad_register(port, 1, 1, 0, None)
    sent(port, agent, lid, 0, mad(1, 1, NODE_DESCRIPTION, 3), 1000, 3)
    library().umad_poll(port, 10_000)
    os.read(port, 8)
    say("emptied", [received(port, timeout=0)[0] == agent, received(port, timeout=0)[0]])
    reader, writer = os.pipe()
    os.dup2(writer, port)
    sent(port, agent, lid, 0, mad(1, 1, NODE_DESCRIPTION, 4), 1000, 3)
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    say("foreign", len(poll.poll(300)))
    os.close(port)
    again = library().umad_open_smi_port(b"ib0", 1)
    say("again", [again == port, library().umad_close_port(again)])


def nulls() -> None:
    """
    All functions with zeros, on no port.
    """
    ended = []
    for name in json.loads(os.environ["NAMES"]):
        getattr(library(), name)(*[None] * 6)
        ended.append(name)
    say("nulls", ended)


def main() -> None:
    """
    All.
    """
    exchange(1, devices())
    manager()
    nulls()
    say("errno", errno.EINVAL)


if __name__ == "__main__":
    main()
