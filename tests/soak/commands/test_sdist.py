"""
What is built from the checkout by way of an sdist.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.test_packaging import PackagingTestCase, backend


class SdistTests(PackagingTestCase):
    """
    It is as the checkout.
    """

    def unpackSdist(self) -> Path:
        """
        @return: the one folder of an unpacked sdist.
        """
        sdist = backend("build_sdist", self.checkout, self.directory / "sdist")
        unpacked = self.directory / "unpacked"
        with tarfile.open(sdist) as archive:
            # Before 3.12 not every Python has filters; from 3.12 on one without is warned of.
            archive.extractall(unpacked, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        [source] = unpacked.iterdir()
        return source

    def test_sdist(self) -> None:
        """
        An sdist has all that the checkout has: from it the tests run, the examples and C{.ci/run}.  A wheel
        built from it is as one built from the checkout.
        """
        self.copy()
        source = self.unpackSdist()
        there = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
        kept = {str(path.relative_to(self.checkout)) for path in self.checkout.rglob("*") if path.is_file()}
        generated = {name for name in there | kept if ".egg-info/" in name} | {"PKG-INFO"}
        self.assertEqual(kept - there - generated, {"twisted/plugins/dropin.cache"})
        self.assertEqual(there - kept - generated, set())
        site, names = self.unpackWheel(backend("build_wheel", source, self.directory / "wheel"))
        self.assertEqual({name for name in names if ".data/" not in name}, self.modules)
        self.assertEqual(self.carried(names), self.share)
        self.assertFound(site, site)
