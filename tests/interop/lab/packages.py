"""
Debian's packages, fetched through the C{apt} of this machine and never installed.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

#: Where files of merged directories really are.
MERGED = ("bin", "sbin", "lib", "lib64")
#: Parts of packages that no guest needs.
LEFT_OUT = ("doc", "man", "locale")


def run(*command: Any, **more: Any) -> None:
    """
    Run a command.

    @raise subprocess.CalledProcessError: it fails.
    """
    subprocess.run([str(each) for each in command], check=True, **more)


def output(*command: Any, **more: Any) -> str:
    """
    @return: what a command writes.
    @raise subprocess.CalledProcessError: it fails.
    """
    command = tuple(str(each) for each in command)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **more).stdout


class Archive:
    """
    The packages that C{apt} can fetch for this machine, by its own configuration.  It is given an empty list
    of what is installed, so that whole closures of dependencies are fetched, and the machine's state is left
    alone.

    @ivar files: where the packages' files come to lie.
    """

    def __init__(self, directory: Path) -> None:
        """
        @param directory: for the files, and for C{apt}'s own.
        """
        self.files = directory / "debs"
        self._nothing = directory / "nothing"
        lists = directory / "lists"
        for each in (self.files, self._nothing, lists):
            (each / "partial").mkdir(parents=True, exist_ok=True)
        status = directory / "status"
        status.touch()
        settings = {
            "Debug::NoLocking": 1,
            "APT::Sandbox::User": os.environ.get("USER", "root"),
            "APT::Install-Recommends": 0,
            "Acquire::Languages": "none",
            "Dir::State::status": status,
            "Dir::State::lists": lists,
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "Dir::Cache::archives": self.files,
        }
        self._options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]

    def update(self) -> None:
        """
        Learn which packages there are.

        @raise subprocess.CalledProcessError: no list could be fetched.
        """
        run("apt-get", *self._options, "-qq", "-o", "APT::Update::Error-Mode=any", "update")

    def closure(self, names: tuple[str, ...]) -> list[str]:
        """
        Fetch packages with all that they depend on.

        @return: the names of their files.
        """
        command = ("apt-get", *self._options, "-y", "-qq")
        # With an empty folder all are listed, also those that are here.
        empty = ("-o", f"Dir::Cache::archives={self._nothing}", "--print-uris", "install")
        files = _named(output(*command, *empty, *names))
        run(*command, "--download-only", "install", *names, stdout=subprocess.DEVNULL)
        return files

    def alone(self, name: str) -> str:
        """
        Fetch one package without what it depends on.

        @return: the name of its file.
        """
        command = ("apt-get", *self._options, "-qq")
        file = _named(output(*command, "--print-uris", "download", name))[-1]
        if not (self.files / file).exists():
            run(*command, "download", name, cwd=self.files, stderr=subprocess.DEVNULL)
        return file

    def needs(self, name: str) -> list[str]:
        """
        @return: the names of the packages that one depends on.
        """
        text = output("apt-cache", *self._options, "show", "--no-all-versions", name)
        found = re.search(r"(?m)^Depends: (.*)", text)
        return [each.split()[0] for each in found[1].split(",")] if found else []

    def unpack(self, files: list[str], tree: Path) -> None:
        """
        Put what packages contain into a directory.
        """
        for name in MERGED:
            (tree / "usr" / name).mkdir(parents=True, exist_ok=True)
            if not (tree / name).is_symlink():
                (tree / name).symlink_to(f"usr/{name}")
        without = [f"--exclude=./usr/share/{each}" for each in LEFT_OUT]
        for file in files:
            command = ["dpkg-deb", "--fsys-tarfile", str(self.files / file)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as package:
                options = ("--keep-directory-symlink", "--no-same-owner", *without)
                run("tar", "-x", "-C", tree, *options, stdin=package.stdout)


def _named(lines: str) -> list[str]:
    """
    @return: the files that C{--print-uris} names.
    """
    return [line.split()[1] for line in lines.splitlines() if line.startswith("'")]
