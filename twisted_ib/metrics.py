"""
Metrics for Prometheus: the counters of HCAs, and what they have in use.

L{MetricsResource} is a page for C{twisted.web} that a Prometheus server reads, L{HCACollector} a collector
for a registry that an application has already; both need C{pip install 'twisted-ib[metrics]'}.  C{ib-devinfo
--prometheus} prints the same of all processes, for the textfile collector of the node exporter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attrs import field, frozen
from twisted.web.resource import Resource

from twisted_ib.internet.readers import channelsOf

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric
    from twisted.web.iweb import IRequest

#: The beginning of all names.
PREFIX = "twisted_ib"
_UP = f"{PREFIX}_up"

#: Counters whose names end with a rule or a kind, which becomes a label, and what is counted.
_LABELLED = {
    "switch_rule_": ("rule", "Decisions of the switch, by the rule."),
    "switch_fallback_": ("kind", "Connections that stayed TCP where SDP was to be tried, by the reason."),
}
#: What the counters are about that every device has, and others that say how it is.
HELP = {
    "sent_pkts": "Records or packets sent, repeated ones included.",
    "rcvd_pkts": "Records or packets received.",
    "duplicate_request": "Requests that came again: the acknowledgement was lost, or came late.",
    "out_of_seq_request": "Requests that came before one that is missing: packets were lost or overtaken.",
    "rcvd_rnr_err": "Requests that the peer had no receive for, and asked to have again.",
    "send_rnr_err": "Requests of peers for which no receive was posted here.",
    "rcvd_seq_err": "Acknowledgements that say that a packet of ours is missing there.",
    "ack_deferred": "Acknowledgements that were put off.",
    "retry_exceeded_err": "Connections that ended because the peer acknowledged nothing.",
    "retry_rnr_exceeded_err": "Connections that ended because the peer never had a receive.",
    "completer_retry_err": "Requests sent again after a timeout.",
    "send_err": "Messages of management and packets that could not be sent.",
    "link_downed": "Times that the port went down.",
    "rdma_sends": "Messages and requests sent.",
    "rdma_recvs": "Messages and requests of peers received and executed.",
    "port_xmit_data": "Data sent by the port, in units of 4 bytes.",
    "port_rcv_data": "Data received by the port, in units of 4 bytes.",
    "doorbells_rung": "Times that a sleeping peer was woken.",
    "sleeps": "Times that the device was put to sleep until a peer wakes it.",
    "management_sent": "Messages of connection management sent.",
    "management_received": "Messages of connection management received.",
    "polling_turns": "Turns of the loop.",
    "polling_spins": "Turns that looked at the device again and again before they slept.",
    "polling_found": "Of these, those that found something.",
    "polling_yields": "Times that the processor was left to others meanwhile.",
    "polling_crowded": "Times that others wanted the processor.",
    "polling_reached": "Answers of slow peers that were waited for without a sleep.",
    "polling_rests": "Times that such waiting was left for a while: in vain, or others wanted the processor.",
    "polling_hits_permille": "Looks at the device that found something lately, per mille.",
    "polling_pure_hits_permille": "The same of looks without a sleep between, per mille.",
    "polling_crowd_permille": "Looks in which others wanted the processor lately, per mille.",
    "cm_connections_exceeded": "Connections refused beyond the most that a device has.",
    "cm_events_full": "Requests dropped because the program takes no events.",
    "cm_foreign_source": "Messages about a connection from another address than its peer's.",
    "cm_half_open_exceeded": "Requests dropped beyond the half-open connections of their source.",
    "cm_half_open_replaced": "Half-open connections that made room for a newer one.",
    "cm_invalid_id": "Messages with a communication id that cannot be.",
    "cm_lookups_exceeded": "Service lookups dropped beyond the most at a time.",
    "cm_malformed": "Messages of connection management with wrong lengths or fields.",
    "cm_no_listener": "Requests for a service that nobody offers here.",
    "cm_outputs_dropped": "Messages dropped because the medium took none for long.",
    "cm_repeated_req": "Requests that came again: the answer was lost, or is late.",
    "cm_repeated_sidr": "Service lookups that came again.",
    "cm_retransmitted": "Messages of connection management sent again.",
    "cm_stale": "Requests and replies of a connection that the peer has lost.",
    "cm_table_full": "Requests refused because the table of connections is full.",
    "cm_timewait_dropped": "Connections released from TIMEWAIT before its end.",
    "cm_unexpected": "Messages that do not fit the state of their connection.",
    "cm_unknown_attribute": "Messages of an unknown kind.",
    "cm_unknown_id": "Messages about a connection that is not known.",
    "cm_unreachable": "Connections given up because the peer did not answer.",
    "cm_wrong_qpn": "Disconnect requests that name another queue pair.",
}
#: The trades of the other counters, by the beginning of the name.
_TRADES = {
    "arp_": "IP over InfiniBand",
    "cm_": "Connection management",
    "datagrams_": "Datagrams",
    "hardware_": "RDMA adapters",
    "ipoib": "IP over InfiniBand",
    "iwarp_": "iWARP",
    "mad_": "Management datagrams",
    "management_": "Management",
    "packets_": "Packets",
    "rds_": "RDS",
    "sa_": "Subnet administration",
    "sm_": "The subnet manager",
    "smp_": "Subnet management packets",
    "umad_": "Programs that use umad",
}
#: Prometheus' data model: the characters of a name; no colon, which is for recording rules.
_NAME = re.compile(r"[a-zA-Z0-9_]+\Z")
_ESCAPES = {"\\": r"\\", "\n": r"\n", '"': r"\""}


@frozen
class Family:
    """
    The samples of one name.

    @ivar name: Without the C{_total} of a counter.
    @ivar kind: C{counter} or C{gauge}.
    @ivar samples: Values by labels.
    """

    name: str
    kind: str
    text: str
    samples: dict[tuple[tuple[str, str], ...], int] = field(factory=dict)


def families(descriptions: Iterable[tuple[Mapping[str, str], Mapping[str, Any]]]) -> list[Family]:
    """
    @param descriptions: Labels for each HCA, and what its C{describe()} returned, perhaps in another process:
        names and values that are none are left out.
    @return: Their metrics, by name.
    """
    found: dict[str, Family] = {}

    def add(name: str, kind: str, text: str, labels: Mapping[str, str], value: object) -> None:
        # In Python, True is an int.
        if isinstance(value, int) and not isinstance(value, bool):
            family = found.setdefault(name, Family(name, kind, text))
            # A process may have several devices of one name, as each of its loops has.  Of two samples with
            # the same labels Prometheus would refuse the whole page.
            key = tuple(labels.items())
            before = family.samples.get(key)
            if before is not None:
                value = max(before, value) if name == _UP or name.endswith("_permille") else before + value
            family.samples[key] = value

    for labels, description in descriptions:
        inUse, counters = description.get("in_use"), description.get("counters")
        # A process that does not answer has no counts.
        add(_UP, "gauge", "1 if the process answers, else 0.", labels, int(isinstance(inUse, dict)))
        for name, value in inUse.items() if isinstance(inUse, dict) else ():
            text = "Objects that exist: queue pairs, memory regions and others."
            add(f"{PREFIX}_in_use", "gauge", text, {**labels, "kind": str(name)}, value)
        for name, value in counters.items() if isinstance(counters, dict) else ():
            begin = next((begin for begin in _LABELLED if str(name).startswith(begin)), "")
            if begin:
                label, text = _LABELLED[begin]
                more = {**labels, label: name[len(begin) :]}
                add(f"{PREFIX}_{begin.rstrip('_')}", "counter", text, more, value)
            elif _NAME.match(str(name)):
                # A rate falls, too.
                kind = "gauge" if str(name).endswith("_permille") else "counter"
                add(f"{PREFIX}_{name}", kind, helpOf(str(name)), labels, value)
    return [found[name] for name in sorted(found)]


def helpOf(name: str) -> str:
    """
    @return: what a counter of C{ib-devinfo} is about.
    """
    known = HELP.get(name)
    if known is not None:
        return known
    trade = next((begin for begin in _TRADES if name.startswith(begin)), "")
    words = name[len(trade) :].strip("_").replace("_", " ")
    return f"{_TRADES.get(trade, 'The device')}: {words}, how often."


def exposition(found: Iterable[Family]) -> str:
    """
    @return: Metrics in Prometheus' text format, version 0.0.4.
    """
    return "".join(line + "\n" for family in found for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    name = family.name + ("_total" if family.kind == "counter" else "")
    yield f"# HELP {name} {family.text}"
    yield f"# TYPE {name} {family.kind}"
    for labels, value in family.samples.items():
        inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
        yield f"{name}{{{inner}}} {value}"


def _escaped(text: str) -> str:
    # Another process may have chosen the text: nothing in it commands a terminal, and it can be encoded.
    return "".join(
        _ESCAPES.get(each) or (each if each.isprintable() else ascii(each)[1:-1].replace("\\", r"\\"))
        for each in text
    )


class HCACollector:
    """
    A collector of C{prometheus_client} for the devices of one reactor.  C{collect} belongs to the reactor's
    thread: a device is not locked.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def collect(self) -> Iterator[Metric]:
        """
        Yield the metrics, as they are now.
        """
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        devices = [channel.device for channel in channelsOf(self._reactor) if not channel.device.closed]
        for family in families(
            [({"device": each.name, "address": each.address or ""}, each.describe()) for each in devices]
        ):
            names = [name for name, _ in next(iter(family.samples))]
            metric = kinds[family.kind](family.name, family.text, labels=names)
            for labels, value in family.samples.items():
                metric.add_metric([text for _, text in labels], value)
            yield metric

    def describe(self) -> list[Metric]:
        """
        Return nothing: names are known when there are devices, and registering must not open one.
        """
        return []


class MetricsResource(Resource):
    """
    A page of C{twisted.web} with the metrics of a reactor's devices, for a Prometheus server.

    C{prometheus_client} has one too, which renders in a thread.
    """

    isLeaf = True

    def __init__(self, reactor: Any, registry: CollectorRegistry | None = None) -> None:
        """
        @param reactor: The reactor that the devices belong to.
        @param registry: One whose metrics stand on the page as well; it gets an L{HCACollector}.
        @raise ImportError: C{prometheus_client} is not installed.
        """
        from prometheus_client import CollectorRegistry

        Resource.__init__(self)
        self._registry = CollectorRegistry() if registry is None else registry
        self._registry.register(HCACollector(reactor))

    def render_GET(self, request: IRequest) -> bytes:
        """
        Render the metrics, in the format that the server accepts.
        """
        from prometheus_client.exposition import choose_encoder

        accepted = request.getHeader(b"accept")
        encode, kind = choose_encoder((accepted or b"").decode("latin-1"))
        request.setHeader(b"content-type", kind.encode("ascii"))
        return bytes(encode(self._registry))


__all__ = ["HELP", "PREFIX", "Family", "HCACollector", "MetricsResource", "exposition", "families", "helpOf"]
