"""Servers that the tests start, each in a separate folder and on separate ports: a gateway, PostgreSQL, and their common parts."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

CREDENTIAL = "shop.c2VjcmV0X29mX3RoZV92ZWN0b3Jz"


class Server:
    """A server process that is killed with -9 and started again on the same port and data."""

    def __init__(self, name: str, folder: Path, command: list[str], port: int, env: Mapping[str, str] | None = None):
        self.name, self.folder, self.command, self.port, self.env = name, folder, command, port, env
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, cwd=self.folder, env=self.env, start_new_session=True)
        until(f"{self.name} listens", lambda: listens(self.port), 60)

    def kill(self) -> None:
        """Kills the process and its children."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def gateway(folder: Path, on_lease_end: Mapping[str, str]) -> tuple[Server, str]:
    """A gateway on the disk engine, and its URL. `on_lease_end` has the setting of each operation."""
    operations = "".join(f'[apps.shop.operations."{name}"]\non_lease_end = "{end}"\n' for name, end in on_lease_end.items())
    digest = hashlib.sha256(CREDENTIAL.split(".")[1].encode()).hexdigest()
    (folder / "oncegate.toml").write_text(f'[apps.shop]\nsecrets = ["sha256:{digest}"]\n{operations}')
    port = free_port()
    command = [os.environ["ONCEGATE_BIN"], "serve", "--config", str(folder / "oncegate.toml")]
    command += ["--engine", f"disk:{folder}/claims", "--data-dir", str(folder)]
    command += ["--listen", f"127.0.0.1:{port}", "--admin-listen", f"127.0.0.1:{free_port()}"]
    return Server("gateway", folder, command, port), f"http://127.0.0.1:{port}"


class Postgres(Server):
    """PostgreSQL, where the effects of a run are counted. The test never kills it before the end, so it need not sync."""

    def __init__(self, folder: Path):
        port, data = free_port(), folder / "postgres"
        data.mkdir()
        options = ["fsync=off", "max_connections=400", f"unix_socket_directories={data}", "listen_addresses=127.0.0.1"]
        command = [_postgres("postgres"), "-D", str(data / "data"), "-p", str(port)]
        for option in options:
            command += ["-c", option]
        as_user: list[str] = []
        if os.geteuid() == 0:
            # It refuses to run as root.
            user = next(user for user in pwd.getpwall() if user.pw_name in ("postgres", "nobody"))
            with contextlib.suppress(KeyError):
                user = pwd.getpwnam("postgres")
            as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            os.chown(data, user.pw_uid, user.pw_gid)
            folder.chmod(0o711)
        initdb = [_postgres("initdb"), "-D", str(data / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run([*as_user, *initdb], check=True, capture_output=True, cwd=data)
        super().__init__("postgres-server", folder, [*as_user, *command], port)
        self.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        self.start()

    def start(self) -> None:
        import psycopg

        super().start()
        until("PostgreSQL answers", lambda: psycopg.connect(self.url, connect_timeout=2), 60)

    def kill(self) -> None:
        """Shuts it down at once. A real kill would leave its shared memory in the kernel."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()


def _postgres(program: str) -> str:
    """Debian keeps them off PATH, in one folder per version."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}")) or [Path(shutil.which(program) or program)]
    return str(found[-1])


class Tail:
    """Counts the lines of a file that grows."""

    def __init__(self, path: Path):
        self._path, self._at, self.lines = path, 0, 0

    def count(self) -> int:
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._at)
            read = file.read()
            self._at, self.lines = self._at + len(read), self.lines + read.count(b"\n")
        return self.lines


def write_line(path: str, text: str) -> None:
    """One line, whole, and there at once."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{text}\n".encode())
    os.close(file)


#: Below the range of outgoing connections: such a connection could take the port of a server while it is down.
PORTS = range(11_000, 32_000)
_ports = itertools.count(random.randrange(len(PORTS)))


def free_port() -> int:
    """A port without a listener. This process returns each port only once."""
    for at in _ports:
        port = PORTS[at % len(PORTS)]
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("the count has no end")


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def until(what: str, is_so: Callable[[], Any], timeout: float = 20) -> None:
    ends, last = time.monotonic() + timeout, ""
    while time.monotonic() < ends:
        try:
            if is_so():
                return
        except Exception as error:
            last = repr(error)
        time.sleep(0.05)
    raise TimeoutError(f"not in time: {what} {last}")


def chunks(items: list[str], size: int) -> Iterable[list[str]]:
    return (items[at : at + size] for at in range(0, len(items), size))
