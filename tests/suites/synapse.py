"""
Run Synapse from PyPI with one worker over its replication, started by C{ib-run}, and look what carries it.

    python -m tests.suites.synapse [--environment DIRECTORY] [--redis PROGRAM] [--output DIRECTORY]

A virtual environment is made for it, with this project in it.  A user registers and sends messages by the
worker, which asks the main process for both by replication; the messages are read from the main process.
Redis is Debian's C{redis-server}, and stays on TCP.  The exit status is 0 if each replication request went
over SDP, 77 if something is missing, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.suites.compare import CONFIGURING, ROOT
from tests.suites.projects import INSTALL_SECONDS, SKIPPED

#: How long each process may take to start, seconds: the first one makes its database.
START_SECONDS = 300
MESSAGES = 50
NAME = "twisted.example"
_LOG = """
version: 1
formatters: {precise: {format: '%(asctime)s %(name)s %(levelname)s %(message)s'}}
handlers: {console: {class: logging.StreamHandler, formatter: precise}}
root: {level: INFO, handlers: [console]}
disable_existing_loggers: false
"""


class Failed(Exception):
    """
    It did not do what it should.
    """


def freePorts(count: int) -> list[int]:
    """
    @return: numbers that no port of TCP has.
    """
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    numbers = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return numbers


class Server:
    """
    Redis, Synapse and a worker.

    @ivar main: the port of Matrix's client API at the main process.
    @ivar worker: the same at the worker.
    """

    def __init__(self, python: str, redis: str, directory: Path) -> None:
        """
        @param python: that of the environment.
        @param redis: the program.
        @param directory: for files and logs.
        """
        self._python = python
        self._redis = redis
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = {key: value for key, value in os.environ.items() if key not in CONFIGURING}
        run = directory / "run"
        run.mkdir(mode=0o700)
        self._environment.update(PYTHONPATH=str(ROOT), HOME=str(directory), TWISTED_IB_RUN_DIR=str(run))
        self.main, self._replication, self.worker, self._redisPort = freePorts(4)

    def configure(self) -> None:
        """
        Write the files of both processes.
        """

        def listener(port: int, name: str) -> dict[str, object]:
            resources = [{"names": [name]}]
            return {"port": port, "bind_addresses": ["127.0.0.1"], "type": "http", "resources": resources}

        where = self._directory
        (where / "log.yaml").write_text(_LOG)
        files = {name: str(where / name) for name in ("media", "log.yaml", "signing.key", "homeserver.db")}
        main = {
            "server_name": NAME,
            "listeners": [listener(self.main, "client"), listener(self._replication, "replication")],
            "database": {"name": "sqlite3", "args": {"database": files["homeserver.db"]}},
            "redis": {"enabled": True, "host": "127.0.0.1", "port": self._redisPort},
            "instance_map": {"main": {"host": "127.0.0.1", "port": self._replication}},
            "log_config": files["log.yaml"],
            "media_store_path": files["media"],
            "signing_key_path": files["signing.key"],
            "pid_file": str(where / "main.pid"),
            "report_stats": False,
            "trusted_key_servers": [],
            "macaroon_secret_key": "a secret of this run",
            "enable_registration": True,
            "enable_registration_without_verification": True,
            "rc_message": {"per_second": 10000, "burst_count": 10000},
        }
        worker = {
            "worker_app": "synapse.app.generic_worker",
            "worker_name": "worker1",
            "worker_listeners": [listener(self.worker, "client")],
            "worker_log_config": files["log.yaml"],
            "worker_pid_file": str(where / "worker.pid"),
        }
        # JSON is YAML.
        (where / "main.yaml").write_text(json.dumps(main))
        (where / "worker.yaml").write_text(json.dumps(worker))

    def start(self) -> None:
        """
        Start the three, one after another.

        @raise Failed: one does not come up.
        """
        redis = [self._redis, "--port", str(self._redisPort), "--bind", "127.0.0.1", "--save", ""]
        self._begin("redis", redis, self._redisPort)
        main = ["-c", str(self._directory / "main.yaml")]
        generating = [self._python, "-m", "synapse.app.homeserver", *main, "--generate-keys"]
        subprocess.run(
            generating, cwd=self._directory, env=self._environment, check=True, capture_output=True
        )
        run = [self._python, "-m", "twisted_ib.tools.run", "-m"]
        self._begin("main", [*run, "synapse.app.homeserver", *main], self.main)
        more = ["-c", str(self._directory / "worker.yaml")]
        self._begin("worker", [*run, "synapse.app.generic_worker", *main, *more], self.worker)

    def _begin(self, name: str, command: list[str], port: int) -> None:
        with open(self._directory / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                command, cwd=self._directory, env=self._environment, stdout=log, stderr=log
            )
        self._processes.append(process)

        def answers() -> bool:
            if process.poll() is not None:
                raise Failed(f"{name} ended: {self.log(name)[-2000:]}")
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        until(answers, f"{name} does not listen")

    def log(self, name: str) -> str:
        """
        @return: what a process has said.
        """
        return (self._directory / f"{name}.log").read_text(errors="replace")

    def rows(self) -> list[dict[str, Any]]:
        """
        @return: the connections and listeners of all, as C{ib-ss --json} shows them.
        """
        command = [self._python, "-m", "twisted_ib.tools.show.ss", "--json"]
        said = subprocess.run(
            command, cwd=self._directory, env=self._environment, check=True, capture_output=True
        )
        found: list[dict[str, Any]] = json.loads(said.stdout)
        return found

    def replication(self) -> tuple[int, int]:
        """
        @return: how many established connections lead to the port of replication over SDP, and over TCP.
        """
        peer = f":{self._replication}"
        found = [row for row in self.rows() if (row["remote"] or "").endswith(peer)]
        ways = [row["provider"] for row in found]
        return ways.count("sdp"), ways.count("tcp")

    def end(self) -> None:
        """
        End them.
        """
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until(holds: Callable[[], bool], trouble: str) -> None:
    """
    Wait until something is so.

    @raise Failed: it is not in time.
    """
    end = time.monotonic() + START_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise Failed(trouble)
        time.sleep(0.1)


def call(port: int, method: str, path: str, token: str = "", **body: object) -> dict[str, Any]:
    """
    Call Matrix's client API.

    @return: the answer.
    """
    data = json.dumps(body).encode() if method != "GET" else None
    request = Request(f"http://127.0.0.1:{port}/_matrix/client/v3/{path}", data, method=method)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urlopen(request, timeout=60) as response:
        found: dict[str, Any] = json.load(response)
    return found


def talk(server: Server) -> int:
    """
    Register and send messages by the worker; read them from the main process.

    @return: how many of them are there.
    """
    user = {"username": "alice", "password": "wonderland", "auth": {"type": "m.login.dummy"}}
    token = call(server.worker, "POST", "register", **user)["access_token"]
    room = call(server.worker, "POST", "createRoom", token)["room_id"]
    for number in range(MESSAGES):
        path = f"rooms/{room}/send/m.room.message/{number}"
        call(server.worker, "PUT", path, token, msgtype="m.text", body=str(number))
    found = call(server.main, "GET", f"rooms/{room}/messages?dir=b&limit={MESSAGES + 10}", token)["chunk"]
    return len({each["content"]["body"] for each in found if each["type"] == "m.room.message"})


def install(environment: Path) -> str:
    """
    Make the environment.

    @return: why that was not possible, or nothing.
    """
    python = str(environment / "bin" / "python")
    steps = [] if environment.exists() else [[sys.executable, "-m", "venv", str(environment)]]
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    steps.append([*pip, str(ROOT), "matrix-synapse[redis]"])
    for step in steps:
        done = subprocess.run(
            ["timeout", str(INSTALL_SECONDS), *step], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return (done.stderr.strip() or "it took too long").splitlines()[-1]
    return ""


def main() -> int:
    """
    Do it.

    @return: 0 if all of the replication went over SDP.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.suites.synapse")
    parser.add_argument("--environment", help="a virtual environment to keep and use again")
    parser.add_argument("--redis", default="redis-server", help="the program (default: %(default)s)")
    parser.add_argument("--output", help="where the logs go; by default they are thrown away")
    options = parser.parse_args()
    redis = shutil.which(options.redis)
    if redis is None:
        print(f"skipped: there is no {options.redis} (apt-get install redis-server)")
        return SKIPPED
    with tempfile.TemporaryDirectory() as temporary:
        environment = Path(options.environment or Path(temporary) / "environment").resolve()
        trouble = install(environment)
        if trouble:
            print(f"skipped: Synapse cannot be installed: {trouble}")
            return SKIPPED
        directory = Path(tempfile.mkdtemp(dir=options.output or temporary)).resolve()
        server = Server(str(environment / "bin" / "python"), redis, directory)
        server.configure()
        try:
            server.start()
            for name in ("main", "worker"):
                print(server.log(name).partition("\n")[0])
            found = talk(server)
            sdp, tcp = server.replication()
        except (Failed, OSError, KeyError) as error:
            print(f"failed: {error}")
            return 1
        finally:
            server.end()
    print(f"{found} of {MESSAGES} messages; connections of replication: {sdp} over SDP, {tcp} over TCP")
    return 0 if found == MESSAGES and sdp and not tcp else 1


if __name__ == "__main__":
    sys.exit(main())
