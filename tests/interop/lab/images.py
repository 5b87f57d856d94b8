"""
The images that guests boot: a kernel of Debian's, an initial file system that mounts the root, and the root.
And the tree of the programs that run here, QEMU above all.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.interop.lab import siw
from tests.interop.lab.packages import Archive, output, run

#: Packages that the host needs besides a plain Debian.
HOST = ("qemu-system-x86", "kmod")
#: Packages of a guest.
GUEST = (
    "busybox-static dash coreutils procps util-linux mount grep sed iproute2 kmod python3 "
    "rdma-core ibverbs-utils ibverbs-providers rdmacm-utils python3-pyverbs perftest "
    "python3-openssl python3-service-identity"
).split()
#: Modules of the kernel, or folders of them; what they depend on follows.
MODULES = (
    "drivers/infiniband/core drivers/infiniband/sw net/rds virtio_pci virtio_blk virtio_net virtio_console "
    "virtio_rng ext4 crc32c_generic crc32c-intel crc32_pclmul sch_netem sch_prio cls_u32 udp_tunnel "
    "ip6_udp_tunnel"
).split()
#: Those that mount the root.
EARLY = ("virtio_pci", "virtio_blk", "crc32c_generic", "crc32c-intel", "ext4")
#: Files of a guest's C{/etc}.
CONFIGURED = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
    "group": "root:x:0:\nnogroup:x:65534:\nrdma:x:102:\n",
    "hosts": "127.0.0.1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\n",
}
#: The folders that a guest mounts something on, or writes to.
FOLDERS = ("proc", "sys", "dev", "run", "tmp", "root")
#: The folder of the files that are a guest's own.
OWN = Path(__file__).parent.parent / "guest"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
#: The init script of the initial file system.
INIT = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs d /dev
{modules}
while ! [ -b /dev/vda ]; do /bin/busybox sleep 0.05; done
/bin/busybox mount -t ext4 /dev/vda /new || exec /bin/busybox sh
exec /bin/busybox switch_root /new /interop/init
"""


def sourceDigest() -> str:
    """
    @return: what changes with what images are made from.
    """
    sources = [Path(__file__), Path(siw.__file__), *sorted(each for each in OWN.iterdir() if each.is_file())]
    return hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()


def cacheDirectory() -> Path:
    """
    @return: where the images are, or shall be.
    """
    named = os.environ.get("TWISTED_IB_INTEROP_CACHE")
    if named:
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twisted_ib" / "interop"


class Images:
    """
    The files that guests boot from.

    @ivar directory: where it is.
    @ivar host: the tree of the programs that run here.
    """

    def __init__(self, directory: Path) -> None:
        """
        @param directory: where it is, or shall be.
        """
        self.directory = directory
        self.host = directory / "host"
        self.kernel = directory / "vmlinuz"
        self.initial = directory / "initrd"
        self.root = directory / "root"
        self._built = directory / "built.json"

    @property
    def release(self) -> str | None:
        """
        The kernel's release; L{None} if nothing is built, or not from what is here now.
        """
        if not self._built.exists():
            return None
        built = self._read()
        return str(built["release"]) if built.get("source") == sourceDigest() else None

    @property
    def noSIW(self) -> str | None:
        """
        The reason why the guests have no siw; L{None} if they have it.
        """
        reason: str | None = self._read()["noSIW"]
        return reason

    def _read(self) -> dict[str, Any]:
        built: dict[str, Any] = json.loads(self._built.read_text())
        return built

    def program(self, name: str, called: str | None = None) -> list[str]:
        """
        @param called: what it shall think that its name is.

        @return: the beginning of a command line: a program of the host tree, with that tree's own libraries.
        """
        paths = [self.host / "usr" / each / name for each in ("bin", "sbin")]
        path = next(each for each in paths if each.exists())
        libraries = self.host / LIBRARIES
        found = ("--library-path", f"{libraries}:{libraries}/pulseaudio", "--argv0", called or name)
        return [str(libraries / "ld-linux-x86-64.so.2"), *found, str(path.resolve())]

    def build(self) -> None:
        """
        Fetch what is needed, and make them.
        """
        self._built.unlink(missing_ok=True)
        archive = Archive(self.directory)
        archive.update()
        image = next(each for each in archive.needs("linux-image-amd64") if each.startswith("linux-image-"))
        release = image.removeprefix("linux-image-")
        file = archive.alone(image)
        host, guest = archive.closure(HOST), archive.closure(tuple(GUEST))
        trees = [self.host, self.directory / "kernel", self.directory / "guest", self.directory / "early"]
        for tree in trees:
            shutil.rmtree(tree, ignore_errors=True)
        archive.unpack(host, self.host)
        archive.unpack([file], trees[1])
        archive.unpack(guest, trees[2])
        noSIW = siw.buildSIW(archive, release, self.directory / "siw", trees[1])
        modules = Modules(self, trees[1], release)
        self._guest(trees[2], modules)
        self._early(trees[3], modules)
        shutil.copy(trees[1] / "boot" / f"vmlinuz-{release}", self.kernel)
        for tree in trees[1:]:
            shutil.rmtree(tree)
        built = {"release": release, "source": sourceDigest(), "noSIW": noSIW}
        self._built.write_text(json.dumps(built))

    def _guest(self, tree: Path, modules: Modules) -> None:
        """
        Make the root of what the packages have put into C{tree}, which the image takes in.
        """
        modules.install(modules.closure(MODULES), tree)
        for name, text in CONFIGURED.items():
            (tree / "etc" / name).write_text(text)
        for name in FOLDERS:
            (tree / name).mkdir(exist_ok=True)
        shutil.copytree(OWN, tree / "interop", ignore=shutil.ignore_patterns("__pycache__"))
        (tree / "interop" / "init").chmod(0o755)
        shell = tree / "usr/bin/sh"
        if not shell.is_symlink():
            shell.symlink_to("dash")
        mebibytes = int(output("du", "-sm", tree).split()[0])
        self.root.unlink(missing_ok=True)
        options = ("-q", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0", "-m", "0", "-d", tree)
        run("mke2fs", *options, self.root, f"{int(mebibytes * 1.15) + 96}M")

    def _early(self, tree: Path, modules: Modules) -> None:
        """
        Make the initial file system.
        """
        for name in ("bin", "proc", "sys", "dev", "new", "m"):
            (tree / name).mkdir(parents=True)
        shutil.copy(self.directory / "guest/usr/bin/busybox", tree / "bin/busybox")
        inserted = []
        for module in modules.closure(EARLY):
            name = Path(module).name.removesuffix(".xz")
            modules.copy(module, tree / "m" / name)
            inserted.append(f"/bin/busybox insmod /m/{name}")
        init = tree / "init"
        init.write_text(INIT.format(modules="\n".join(inserted)))
        init.chmod(0o755)
        pack(tree, self.initial)


def moduleOf(path: str) -> str:
    """
    @param path: as C{modules.dep} and C{modules.builtin} have it.

    @return: the module's name, in the kernel's spelling.
    """
    return Path(path).name.partition(".ko")[0].replace("-", "_")


def moduleClosure(names: Iterable[str], needs: Mapping[str, list[str]], builtin: Iterable[str]) -> list[str]:
    """
    @param names: modules, or folders of them.
    @param needs: by the path of each module that is a file, the paths that it depends on: C{modules.dep}.
    @param builtin: the paths of those that the kernel has without a file: C{modules.builtin}.

    @return: the paths of the files of C{names}, and those of what they depend on, in the order in which
        they can be inserted.
    @raise LookupError: the kernel has no such module, and no such folder.
    """
    within = list(builtin)
    found: dict[str, None] = {}
    for name in names:
        if "/" in name:

            def named(path: str, folder: str = f"kernel/{name}/") -> bool:
                return path.startswith(folder)

        else:

            def named(path: str, module: str = moduleOf(name)) -> bool:
                return moduleOf(path) == module

        paths = list(filter(named, needs))
        if not paths and not any(map(named, within)):
            raise LookupError(f"the kernel has no module {name}, neither as a file nor built in")
        for path in paths:
            found.update(dict.fromkeys([*reversed(needs[path]), path]))
    return list(found)


class Modules:
    """
    The modules of a kernel.
    """

    def __init__(self, images: Images, tree: Path, release: str) -> None:
        """
        @param tree: what the kernel's package contains.
        """
        self._images, self._release = images, release
        self._directory = tree / "lib/modules" / release
        self._depmod(tree)
        lines = (self._directory / "modules.dep").read_text().splitlines()
        split = (line.partition(":") for line in lines)
        self._needs = {path: needed.split() for path, _, needed in split}
        self._builtin = (self._directory / "modules.builtin").read_text().split()

    def _depmod(self, tree: Path) -> None:
        """
        List what depends on what.
        """
        run(*self._images.program("kmod", "depmod"), "-b", tree, self._release)

    def closure(self, names: Iterable[str]) -> list[str]:
        """
        @return: the files for modules, or for folders of them, as L{moduleClosure} says.
        """
        return moduleClosure(names, self._needs, self._builtin)

    def copy(self, path: str, target: Path) -> None:
        """
        Copy one, not compressed.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        source = self._directory / path
        if source.suffix == ".xz":
            target.write_bytes(lzma.decompress(source.read_bytes()))
        else:
            shutil.copyfile(source, target)

    def install(self, paths: list[str], tree: Path) -> None:
        """
        Give some to a guest.
        """
        target = tree / "lib/modules" / self._release
        for path in paths:
            self.copy(path, target / path.removesuffix(".xz"))
        for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
            shutil.copy(self._directory / name, target / name)
        self._depmod(tree)


def pack(tree: Path, target: Path) -> None:
    """
    Make an archive of the kernel's kind (cpio, "newc"), in which all belongs to root.
    """
    entries = sorted(tree.rglob("*"))
    with target.open("wb") as file:

        def put(name: str, mode: int, data: bytes, number: int) -> None:
            encoded = name.encode() + b"\0"
            fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
            file.write(b"070701" + b"".join(b"%08x" % field for field in fields) + encoded)
            file.write(bytes(-file.tell() % 4))
            file.write(data)
            file.write(bytes(-file.tell() % 4))

        for number, path in enumerate(entries, 1):
            data = b"" if path.is_dir() else path.read_bytes()
            put(str(path.relative_to(tree)), path.stat().st_mode, data, number)
        put("TRAILER!!!", 0, b"", 0)
