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

#: Counters whose names end with a rule or a kind, which becomes a label.
_LABELLED = {"switch_rule_": "rule", "switch_fallback_": "kind"}
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
            # Of two samples with the same labels Prometheus would refuse the whole page.
            family.samples.setdefault(tuple(labels.items()), value)

    for labels, description in descriptions:
        inUse, counters = description.get("in_use"), description.get("counters")
        # A process that does not answer has no counts.
        add(f"{PREFIX}_up", "gauge", "Whether the process answers.", labels, int(isinstance(inUse, dict)))
        for name, value in inUse.items() if isinstance(inUse, dict) else ():
            text = "Objects of verbs that exist."
            add(f"{PREFIX}_in_use", "gauge", text, {**labels, "kind": str(name)}, value)
        for name, value in counters.items() if isinstance(counters, dict) else ():
            begin = next((begin for begin in _LABELLED if str(name).startswith(begin)), "")
            if begin:
                more = {**labels, _LABELLED[begin]: name[len(begin) :]}
                add(f"{PREFIX}_{begin.rstrip('_')}", "counter", "Decisions of the switch.", more, value)
            elif _NAME.match(str(name)):
                text = f"The counter {name} of ib-devinfo."
                # A rate falls, too.
                kind = "gauge" if str(name).endswith("_permille") else "counter"
                add(f"{PREFIX}_{name}", kind, text, labels, value)
    return [found[name] for name in sorted(found)]


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


__all__ = ["PREFIX", "Family", "HCACollector", "MetricsResource", "exposition", "families"]
