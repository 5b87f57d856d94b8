"""
What the machine has: Pythons, README's commands, packages of Debian, which are installed, or hidden again.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from functions import ROOT, Run, execute

#: Has the names of the packages that the machine had before any was installed here.
_BEFORE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twisted_ib" / "ci-packages"


def pythons() -> dict[str, str]:
    """
    @return: version, as C{3.12} -> interpreter, from 3.10 on, of PATH and of pyenv, the oldest first.
    """
    found: dict[str, str] = {}
    candidates = [
        os.path.join(folder, name)
        for folder in os.get_exec_path()
        if os.path.isdir(folder)
        for name in sorted(os.listdir(folder))
        if re.fullmatch(r"python3\.\d+", name)
    ]
    if shutil.which("pyenv"):
        told = subprocess.run(["pyenv", "root"], stdout=subprocess.PIPE, text=True).stdout.strip()
        candidates += map(str, sorted(Path(told).glob("versions/*/bin/python3")))
    program = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    for path in candidates:
        said = subprocess.run(
            [path, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        if said.returncode == 0:
            found.setdefault(said.stdout.strip(), path)
    return {
        version: found[version]
        for version in sorted(found, key=lambda each: int(each[2:]))
        if int(version[2:]) >= 10
    }


def others() -> dict[str, str]:
    """
    @return: those of L{pythons} but the one that runs this.
    """
    main = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return {version: path for version, path in pythons().items() if version != main}


def oldest() -> list[str]:
    """
    @return: the least versions that C{setup.cfg} allows of what the package stands on, as pip takes them.
         Releases of Twisted before 26 do not work with the pyOpenSSL of today.
    """
    names = r"^ *(attrs|pyopenssl|twisted\[tls\]|zope.interface) >= (\S+)$"
    found = re.findall(names, (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    return [f"{name}=={version}.*" for name, version in found]


def readme(end: str) -> str:
    """
    @return: the command of README.md that makes an environment, on a line of its own, and ends so.
    """
    lines = (ROOT / "README.md").read_text().splitlines()
    return next(
        each for each in map(str.strip, lines) if each.startswith("python3 -m venv") and each.endswith(end)
    )


def _installed() -> set[str]:
    command = ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package}\n"]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
    return {line[3:] for line in said.splitlines() if line.startswith("ii ")}


def install(run: Run, wanted: Sequence[str]) -> None:
    """
    Install packages of Debian, where that is possible.  Services that come with them are not started.  It is
    no step: tests that need what could not be installed are skipped, and say so.
    """
    if not shutil.which("apt-get"):
        return
    installed = _installed()
    missing = sorted(set(wanted) - installed)
    if not missing:
        return
    if not _BEFORE.exists():
        _BEFORE.parent.mkdir(parents=True, exist_ok=True)
        _BEFORE.write_text("\n".join(sorted(installed)))
    run.say(f"=== {' '.join(missing)}")
    # A run that was cut short may have left packages half installed.
    script = (
        "{ dpkg --configure -a && apt-get update -qq && apt-get install -y -qq --no-install-recommends "
        f"{' '.join(missing)}; }} >'{run.folder}/apt' 2>&1 || {{ tail -n 5 '{run.folder}/apt'; exit 1; }}"
    )
    command = [
        *(["sudo", "-n"] if os.geteuid() else []),
        "env",
        "DEBIAN_FRONTEND=noninteractive",
        "RUNLEVEL=1",
    ]
    for _ in range(2):
        if execute([*command, "sh", "-c", script], 600, run.folder, os.environ, run.say)[0] == 0:
            break


def bare(run: Run) -> list[str]:
    """
    @return: the beginning of a command that runs without the files of the packages that L{install} has
        brought to this machine, now or earlier; nothing where there are none, or a mount namespace cannot be
        had.
    """
    since = sorted(_installed() - set(_BEFORE.read_text().split())) if _BEFORE.exists() else []
    if not since:
        return []
    folder = run.folder / "bare"
    folder.mkdir()
    listed = subprocess.run(["dpkg", "-L", *since], stdout=subprocess.PIPE).stdout.splitlines()
    # /bin, /lib and /sbin are in /usr.
    paths = {
        each if each.startswith(b"/usr/") else b"/usr" + each for each in listed if each.startswith(b"/")
    }
    files = [each for each in sorted(paths) if os.path.islink(each) or os.path.isfile(each)]
    (folder / "files").write_bytes(b"".join(each + b"\0" for each in files))
    script = (
        'set -e; cd "$0"; mkdir -p over; mount -t tmpfs bare over; mkdir over/upper over/work; '
        "mount -t overlay bare -o lowerdir=/usr,upperdir=over/upper,workdir=over/work /usr; "
        'xargs -0 rm -f <files; cd "$OLDPWD"; exec "$@"'
    )
    prefix = ["unshare", "-m", "sh", "-c", script, str(folder)]
    tried = subprocess.run([*prefix, "true"], capture_output=True, text=True)
    if tried.returncode:
        run.say(f"packages cannot be hidden here: {tried.stderr.strip()}")
        return []
    run.say(f"{len(files)} files of {len(since)} packages are hidden")
    return prefix
