"""
Tests for L{twisted_ib.metrics}.
"""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families as parsed
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.test.requesthelper import DummyRequest

from tests.sdp.pair import HandReactor
from tests.support.rundirectory import ownRunDirectory
from twisted_ib.hca.base.polling import AdaptivePolling
from twisted_ib.hca.device.device import Device
from twisted_ib.internet.channel import channelFor
from twisted_ib.metrics import HELP, MetricsResource, exposition, families, helpOf


class FormatTests(SynchronousTestCase):
    """
    From descriptions of HCAs to Prometheus' text.
    """

    def test_text(self) -> None:
        """
        Counts are gauges, counters are counters; rules and kinds become labels.
        """
        counters = {"sent_pkts": 3, 'switch_rule_/a "b"\\n:1': 2, "switch_fallback_refused": 1}
        description = {"in_use": {"qp": 5}, "counters": counters}
        self.assertEqual(
            exposition(families([({"device": "shm0"}, description)])),
            "# HELP twisted_ib_in_use Objects that exist: queue pairs, memory regions and others.\n"
            "# TYPE twisted_ib_in_use gauge\n"
            'twisted_ib_in_use{device="shm0",kind="qp"} 5\n'
            "# HELP twisted_ib_sent_pkts_total Records or packets sent, repeated ones included.\n"
            "# TYPE twisted_ib_sent_pkts_total counter\n"
            'twisted_ib_sent_pkts_total{device="shm0"} 3\n'
            "# HELP twisted_ib_switch_fallback_total "
            "Connections that stayed TCP where SDP was to be tried, by the reason.\n"
            "# TYPE twisted_ib_switch_fallback_total counter\n"
            'twisted_ib_switch_fallback_total{device="shm0",kind="refused"} 1\n'
            "# HELP twisted_ib_switch_rule_total Decisions of the switch, by the rule.\n"
            "# TYPE twisted_ib_switch_rule_total counter\n"
            'twisted_ib_switch_rule_total{device="shm0",rule="/a \\"b\\"\\\\n:1"} 2\n'
            "# HELP twisted_ib_up 1 if the process answers, else 0.\n"
            "# TYPE twisted_ib_up gauge\n"
            'twisted_ib_up{device="shm0"} 1\n',
        )

    def test_rates(self) -> None:
        """
        What is no count, and may fall, is a gauge.
        """
        [rate, up] = families([({}, {"in_use": {}, "counters": {"polling_hits_permille": 250}})])
        self.assertEqual((rate.name, rate.kind), ("twisted_ib_polling_hits_permille", "gauge"))
        self.assertEqual(up.kind, "gauge")

    def test_sums(self) -> None:
        """
        Several devices of one name in a process are one to Prometheus: their counts are added, rates are not.
        """
        one = {"in_use": {"qp": 2}, "counters": {"sent_pkts": 3, "polling_hits_permille": 100}}
        two = {"in_use": {"qp": 1}, "counters": {"sent_pkts": 4, "polling_hits_permille": 300}}
        found = {each.name: each.samples for each in families([({"pid": "7"}, one), ({"pid": "7"}, two)])}
        labels = (("pid", "7"),)
        self.assertEqual(found["twisted_ib_sent_pkts"], {labels: 7})
        self.assertEqual(found["twisted_ib_polling_hits_permille"], {labels: 300})
        self.assertEqual(found["twisted_ib_in_use"], {(*labels, ("kind", "qp")): 3})
        self.assertEqual(found["twisted_ib_up"], {labels: 1})

    def test_help(self) -> None:
        """
        Each counter that every device has says what it counts; others say at least what they are about.
        """
        ownRunDirectory(self)
        for name in ("lo0", "shm0"):
            device = Device(name)
            self.addCleanup(device.close)
            self.assertEqual(set(device.describe()["counters"]) - set(HELP), set())
        self.assertLessEqual(set(AdaptivePolling(time.monotonic, int).counters()), set(HELP))
        self.assertEqual(helpOf("umad_refused"), "Programs that use umad: refused, how often.")
        self.assertEqual(helpOf("bad_hello"), "The device: bad hello, how often.")

    def test_unprintable(self) -> None:
        """
        Text of another process does not command a terminal, and can be encoded.
        """
        counters = {"switch_rule_\x1b]0;x\a": 1, "switch_fallback_\u202e": 2}
        description = {"in_use": {"\ud800": 3}, "counters": counters}
        text = exposition(families([({"device": "\x1b[2J"}, description)]))
        self.assertTrue(text.encode().decode().replace("\n", "").isprintable())
        labels = [sample.labels for family in parsed(text) for sample in family.samples]
        device = {"device": r"\x1b[2J"}
        self.assertIn({**device, "rule": r"\x1b]0;x\x07"}, labels)
        self.assertIn({**device, "kind": r"\u202e"}, labels)
        self.assertIn({**device, "kind": r"\ud800"}, labels)

    def test_silent(self) -> None:
        """
        A process that does not answer is not up, and has nothing else.
        """
        [up] = families([({"pid": "7"}, {"in_use": None})])
        self.assertEqual((up.name, up.samples), ("twisted_ib_up", {(("pid", "7"),): 0}))

    def test_nonsense(self) -> None:
        """
        What another process says, whatever it is, leaves a page that Prometheus reads: names and values that
        are none are left out, and two with the same labels are one.
        """
        odd = {
            "a b": 1,
            "x{": 1,
            "": 1,
            "n\n": 1,
            "text": "5",
            "real": 1.5,
            "true": True,
            "none": None,
            "good": 2,
        }
        descriptions: list[Any] = [
            ({"device": 'd"\n\\'}, {"in_use": {"q\n": 1, "r": "x"}, "counters": odd}),
            ({"device": 'd"\n\\'}, {"in_use": {"q\n": 3}, "counters": {"good": 4}}),
            ({"device": "e"}, {"in_use": [], "counters": 7}),
            ({"device": "f"}, {}),
        ]
        found = {family.name: family for family in parsed(exposition(families(descriptions)))}
        self.assertEqual(set(found), {"twisted_ib_up", "twisted_ib_in_use", "twisted_ib_good"})
        [sample] = found["twisted_ib_good"].samples
        self.assertEqual((sample.labels, sample.value), ({"device": 'd"\n\\'}, 6.0))
        self.assertEqual([sample.value for sample in found["twisted_ib_up"].samples], [1.0, 0.0, 0.0])


class ResourceTests(SynchronousTestCase):
    """
    The page of a process.
    """

    def page(self, resource: MetricsResource) -> dict[str, Any]:
        """
        @return: the families on the page.
        """
        request: Any = DummyRequest([b"metrics"])
        body = resource.render_GET(request)
        [kind] = request.responseHeaders.getRawHeaders(b"content-type")
        self.assertTrue(kind.startswith(b"text/plain"))
        return {family.name: family for family in parsed(body.decode())}

    def test_page(self) -> None:
        """
        The devices that the reactor has open now, with the metrics that the application has beside.
        """
        reactor = HandReactor()
        registry = CollectorRegistry()
        Counter("mine", "The application's.", registry=registry).inc()
        resource = MetricsResource(reactor, registry)
        self.assertEqual(set(self.page(resource)) - {"mine_created"}, {"mine"})
        channel = channelFor(reactor, "lo0")
        self.addCleanup(channel.close)
        channel.count("bad_hello")
        found = self.page(resource)
        self.assertIn("mine", found)
        [sample] = found["twisted_ib_bad_hello"].samples
        self.assertEqual((sample.labels, sample.value), ({"device": "lo0", "address": ""}, 1.0))
        self.assertEqual(
            {sample.labels["kind"] for sample in found["twisted_ib_in_use"].samples},
            {"pd", "mr", "cq", "qp", "srq", "ah", "mw"},
        )
        channel.close()
        self.assertNotIn("twisted_ib_up", self.page(MetricsResource(reactor)))
