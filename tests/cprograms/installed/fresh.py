"""
From nothing to a perftest as somebody else would get there, for C{python -m tests.cprograms.installed.fresh
[FOLDER]}.
An unprivileged user in a container that has neither a compiler nor headers nor an adapter makes an
environment, installs a wheel that carries the libraries and what it needs, all from a folder of wheels, and
runs C{ib_send_lat}.

It says how long each step took, and what is then installed; the exit status is 1 if all took longer than
L{SECONDS}.  The wheels are built before, which does not count.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: All steps are to be done in this time, on a quiet machine.
SECONDS = 60
#: What any distribution calls its nobody.
_NOBODY = 65534
#: Compilers by their names, whatever their version is.
_COMPILERS = ("gcc", "g++", "cc", "c++", "clang", "tcc", "ld", "as")
#: Where C's headers are, and the kernel's devices: empty there.
_EMPTY = ("/usr/include", "/usr/local/include", "/dev/infiniband", "/sys/class/infiniband")
#: Programs of Debian that are needed, with their packages.
NEEDED = {"stdbuf": "coreutils", "unshare": "util-linux", "setpriv": "util-linux", "ib_send_lat": "perftest"}
#: The steps that count, in a shell of that user; C{$1} is the interpreter, C{$2} the folder of wheels.
_STEPS = {
    "python -m venv": '"$1" -m venv here',
    "pip install": """
    here/bin/pip install -q --disable-pip-version-check --no-index --find-links "$2" 'twisted-ib[c]'
    """,
    "ib_send_lat": """
    export PATH="$PWD/here/bin:$PATH"
    stdbuf -oL ib-run -q --device shm0 ib_send_lat -d shm0 -F -n 1000 >server 2>&1 &
    for _ in $(seq 300); do
        grep -q Waiting server && break
        sleep 0.1
    done
    ib-run -q --device shm0 ib_send_lat -d shm0 -F -n 1000 127.0.0.1 && wait $!
    """,
}

# -- what Docker's default profile refuses (moby profiles/seccomp/default.json), by the numbers of x86-64

_REFUSED = {
    "add_key": 248,
    "bpf": 321,
    "io_uring_setup": 425,
    "keyctl": 250,
    "mount": 165,
    "move_mount": 429,
    "open_by_handle_at": 304,
    "perf_event_open": 298,
    "pivot_root": 155,
    "request_key": 249,
    "setns": 308,
    "unshare": 272,
    "userfaultfd": 323,
}
_X86_64 = 0xC000003E
#: linux/filter.h: load a word, jump if equal, return; seccomp(2): what is refused fails with EPERM.
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2


def refuseCalls() -> None:
    """
    Have the kernel refuse this process and its children what containers are refused.

    @raise OSError: the kernel has no filters, or refuses this one.
    """
    rules = [struct.pack("=HBBI", _LOAD, 0, 0, 4)]
    rules.append(struct.pack("=HBBI", _JUMP_EQUAL, 0, len(_REFUSED) + 1, _X86_64))
    rules.append(struct.pack("=HBBI", _LOAD, 0, 0, 0))
    for left, number in zip(range(len(_REFUSED), 0, -1), _REFUSED.values(), strict=True):
        rules.append(struct.pack("=HBBI", _JUMP_EQUAL, left, 0, number))
    rules.append(struct.pack("=HBBI", _RETURN, 0, 0, _ALLOW))
    rules.append(struct.pack("=HBBI", _RETURN, 0, 0, _EPERM))
    # The jumps: another machine's numbers lead to what is allowed, each refused one to the last rule.
    code = ctypes.create_string_buffer(b"".join(rules))
    program = struct.pack("@HP", len(rules), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "there are no filters of calls here")


# -- the container


def headers(interpreter: str) -> str:
    """
    @return: the folder of its C headers, also if it is not there.
    """
    command = [interpreter, "-c", "import sysconfig; print(sysconfig.get_path('include'))"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def hidden(interpreter: str) -> Iterator[tuple[str, bool]]:
    """
    @param interpreter: whose headers are hidden, too.
    @return: paths that are not to be there, and whether each is a folder.
    """
    # Debian's are links from one folder to another, of which each is in PATH.
    folders = {os.path.realpath(folder) for folder in os.get_exec_path()}
    for folder in sorted(filter(os.path.isdir, folders)):
        for name in sorted(os.listdir(folder)):
            words = name.split("-")
            if any(word in _COMPILERS for word in words) and os.path.isfile(os.path.join(folder, name)):
                yield os.path.join(folder, name), False
    its = headers(interpreter)
    own = () if its.startswith(_EMPTY) else (its,)
    yield from ((folder, True) for folder in (*_EMPTY, *own) if os.path.isdir(folder))


def confined(interpreter: str, words: list[str]) -> list[str]:
    """
    @param interpreter: of the environment.
    @param words: of a command.
    @return: a command that runs it in the container.
    """
    mounts = ["set -e"]
    for path, isFolder in hidden(interpreter):
        kind = "-t tmpfs -o mode=0755 none" if isFolder else "--bind /dev/null"
        mounts.append(f"mount {kind} '{path}'")
    mounts += ["mount --bind -o ro /sys /sys 2>/dev/null || true", 'exec "$@"']
    rights = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    if os.geteuid() == 0:
        rights += [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    users = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *users, "--mount", "sh", "-c", "\n".join(mounts), "sh", "setpriv", *rights, *words]


def filtered(interpreter: str, words: list[str]) -> list[str]:
    """
    @return: the same, with the calls refused as well.
    """
    # By its text, as that user may not read the checkout.
    code = f"import os, sys; there = dict(__name__='fresh', __file__={__file__!r})\n"
    code += f"exec({Path(__file__).read_text()!r}, there); there['refuseCalls']()\n"
    code += "os.execvp(sys.argv[1], sys.argv[1:])"
    return confined(interpreter, [interpreter, "-B", "-c", code, *words])


def reachable() -> str:
    """
    @return: an interpreter of this version that any user may start.
    """
    own = os.path.join(sys.base_prefix, "bin", f"python{sysconfig.get_python_version()}")
    for path in (own, f"/usr/bin/python{sysconfig.get_python_version()}"):
        folders = Path(path).resolve().parents
        if os.access(path, os.X_OK) and (os.geteuid() or all(each.stat().st_mode & 1 for each in folders)):
            return path
    raise SystemExit(f"any user needs a Python {sysconfig.get_python_version()}, as Debian's python3-venv")


# -- the steps


def build(folder: Path) -> None:
    """
    Make a wheel that carries the libraries, and fetch those that it needs with the extra C{[c]}.
    """
    environment = {**os.environ, "TWISTED_IB_CLIBRARIES": "1"}
    command = [sys.executable, "-m", "pip", "wheel", "-q", "-w", str(folder), f"{ROOT}[c]"]
    subprocess.run(command, env=environment, check=True)


def installed(folder: Path) -> str:
    """
    @return: how much is in the environment.
    """
    (packages,) = (folder / "here/lib").glob("python3*/site-packages")
    files = [path for path in packages.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    count = len(list(packages.glob("*.dist-info")))
    return f"{count} packages, {len(files)} files, {size:.0f} MB"


def _worked() -> float:
    # On a busy machine this says more than the time that has passed.
    used = os.times()
    return used.children_user + used.children_system


def run(wheels: str | None) -> int:
    """
    @param wheels: a folder of them, or L{None} to have them built.
    @return: the exit status.
    """
    for name, package in NEEDED.items():
        if shutil.which(name) is None:
            raise SystemExit(f"there is no {name}, of Debian's package {package}")
    interpreter = reachable()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        folder.chmod(0o755)
        place = folder / "home"
        place.mkdir(0o700)
        if os.geteuid() == 0:
            os.chown(place, _NOBODY, _NOBODY)
        # Where any user may read them.
        own = folder / "wheels"
        if wheels is None:
            build(own)
        else:
            shutil.copytree(wheels, own)
        own.chmod(0o755)
        environment = {"HOME": str(place), "TMPDIR": str(place), "PATH": os.environ["PATH"]}
        # In a namespace an unprivileged user is called root, too, and root's own is another's.
        environment |= {"TWISTED_IB_RUN_DIR": str(place)}
        begun, total = time.monotonic(), _worked()
        for name, step in _STEPS.items():
            before, worked = time.monotonic(), _worked()
            words = filtered(interpreter, ["sh", "-ec", step, "sh", interpreter, str(own)])
            ended = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True)
            took, work = time.monotonic() - before, _worked() - worked
            print(f"{took:6.1f} s, {work:4.1f} s of a processor: {name}", flush=True)
            if ended.returncode:
                print(ended.stdout + ended.stderr)
                return 1
        took, work = time.monotonic() - begun, _worked() - total
        print(f"{took:6.1f} s, {work:4.1f} s of a processor: altogether; {installed(place)}")
        print(ended.stdout.strip())
    return 0 if took <= SECONDS else 1


if __name__ == "__main__":
    sys.exit(run(*(sys.argv[1:] or [None])))
