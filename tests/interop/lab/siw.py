"""
siw, the kernel's software RNIC, which Debian's kernels leave out: built of Debian's source against Debian's
headers.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.interop.lab.packages import Archive, run

#: Where it is in the source, and in what a kernel's package contains.
FOLDER = "drivers/infiniband/sw/siw"
#: Packages without which the headers are not whole.
_HEADERS = ("linux-headers-", "linux-kbuild-")
#: The end of what the build wrote that a reason quotes, octets.
_QUOTED = 300


def buildSIW(archive: Archive, release: str, work: Path, kernel: Path) -> str | None:
    """
    Add the module to what a kernel's package contains.

    @param release: the kernel's.
    @param work: a folder for what it is built of, which is removed.
    @param kernel: the tree of the kernel's package.
    @return: why it cannot be built; L{None} if it is.
    """
    missing = [name for name in ("gcc", "make", "ld", "strip") if shutil.which(name) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} here"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        headers = _headers(archive, release, work / "headers")
        folder = _source(archive, release, work)
        with (work / "log").open("wb") as log:
            # Without pahole a module has no BTF, which nothing here reads.
            options = ("CONFIG_RDMA_SIW=m", "CONFIG_DEBUG_INFO_BTF_MODULES=", "-j2")
            run("make", "-C", headers, f"M={folder}", *options, "modules", stdout=log, stderr=log)
        target = kernel / "lib/modules" / release / "kernel" / FOLDER
        target.mkdir(parents=True)
        run("strip", "--strip-debug", "-o", target / "siw.ko", folder / "siw.ko")
    except subprocess.CalledProcessError as error:
        log = work / "log"
        said = log.read_text()[-_QUOTED:] if log.exists() else ""
        return f"siw cannot be built: {error} {said}".strip()
    finally:
        shutil.rmtree(work)
    return None


def _headers(archive: Archive, release: str, tree: Path) -> Path:
    """
    @return: the folder in which modules of a kernel are made.
    """
    name = f"linux-headers-{release}"
    files = [archive.alone(name)]
    files += [archive.alone(each) for each in archive.needs(name) if each.startswith(_HEADERS)]
    archive.unpack(files, tree)
    folder = tree / f"usr/src/{name}"
    makefile = folder / "Makefile"
    # It names its other half by an absolute path.
    makefile.write_text(makefile.read_text().replace("/usr/src/", f"{tree}/usr/src/"))
    return folder


def _source(archive: Archive, release: str, work: Path) -> Path:
    """
    @return: the folder of its source.
    """
    name = f"linux-source-{'.'.join(release.split('.')[:2])}"
    file = archive.files / archive.alone(name)
    package = subprocess.Popen(("dpkg-deb", "--fsys-tarfile", file), stdout=subprocess.PIPE)
    inner = ("tar", "-xO", f"./usr/src/{name}.tar.xz")
    with package, subprocess.Popen(inner, stdin=package.stdout, stdout=subprocess.PIPE) as source:
        run("tar", "-xJ", "-C", work, f"{name}/{FOLDER}", stdin=source.stdout)
    return work / name / FOLDER
