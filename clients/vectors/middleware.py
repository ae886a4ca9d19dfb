#!/usr/bin/env python3
"""Sends the cases of middleware.json to the test application of a middleware, and says which failed.

Usage: middleware.py [OPTION]... -- COMMAND...

COMMAND is a test application; clients/vectors/README.md says what it does. The driver starts a gateway on the memory engine and
`COMMAND --port 0` with ONCEGATE_URL in its environment. ONCEGATE_BIN names the gateway; without it one is built.
Needs Python 3.10, nothing else.
"""

import argparse
import gzip
import hashlib
import itertools
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
import zlib
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
APP_KEY = "default"
# Longest time of any step of a case. A longer step counts as hanging.
PATIENCE = 30.0
# Seconds without a byte after which a response counts as broken, and time after which a slow case is named. The longest case waits for
# about six.
SLOW = 10.0


class Failed(Exception):
    """What a case expected, and what came."""


class Broken(Exception):
    """No complete response came."""


# Requests


class Values:
    """The placeholders of one case: each name has one fresh value."""

    def __init__(self):
        self.values = {}

    def of(self, name):
        fresh = uuid.uuid4().hex
        return self.values.setdefault(name, fresh[:31] if name == "$hex31" else f"v-{fresh}")

    def text(self, text):
        for name in ("$hex31", *(f"$key{n}" for n in range(9, 1, -1)), "$key"):
            if name in text:
                text = text.replace(name, self.of(name))
        return text

    def field(self, given):
        """The bytes of a field's value."""
        if isinstance(given, str):
            return self.text(given).encode("ascii")
        if "latin1" in given:
            return given["latin1"].encode("latin-1")
        text, times = given["repeat"]
        return (text * times + self.text(given.get("then", ""))).encode("ascii")


def body_of(given):
    """The bytes of a body, and its content type if it brings one."""
    if given is None:
        return None, None
    if isinstance(given, str):
        return given.encode(), None
    if "repeat" in given:
        text, times = given["repeat"]
        return (text * times).encode(), None
    if "gzip" in given:
        # Equal bytes for equal texts: no time in the head.
        return gzip.compress(given["gzip"].encode(), given.get("level", 9), mtime=0), None
    boundary = given["multipart"]
    lines = []
    for name, file, text in given["parts"]:
        disposition = f'Content-Disposition: form-data; name="{name}"'
        if file is not None:
            disposition += f'; filename="{file}"\r\nContent-Type: text/plain'
        lines.append(f"--{boundary}\r\n{disposition}\r\n\r\n{text}\r\n")
    return "".join([*lines, f"--{boundary}--\r\n"]).encode(), f"multipart/form-data; boundary={boundary}"


STRETCHED = {"sleep", "poll", "every", "after", "fails"}


def stretched(steps, factor):
    """The steps with all their times multiplied."""
    if isinstance(steps, list):
        return [stretched(step, factor) for step in steps]
    if isinstance(steps, dict):
        return {
            name: round(value * factor) if name in STRETCHED and isinstance(value, (int, float)) else stretched(value, factor)
            for name, value in steps.items()
        }
    return steps


def framed(body, framing):
    """The field that frames the body, and what is sent of it, piece by piece with the bytes of the body in each."""
    if body is None or framing == "none":
        return [], []
    if framing == "length":
        return [(b"Content-Length", str(len(body)).encode())], [(body, len(body))]
    pieces, at = [], 0
    for size in framing["chunks"]:
        part = body[at : at + size]
        at += size
        pieces.append((b"%x\r\n%s\r\n" % (len(part), part), len(part)))
    trailers = "".join(f"{name}: {value}\r\n" for name, value in framing.get("trailers", []))
    last = framing.get("then", f"0\r\n{trailers}\r\n")
    return [(b"Transfer-Encoding", b"chunked")], [*pieces, (last.encode(), 0)]


def sent_before(pieces, cut):
    """What is sent if the upload ends after `cut` bytes of the body."""
    sent = b""
    for piece, length in pieces:
        if cut <= 0:
            break
        sent += piece if length <= cut else piece[:cut]
        cut -= length
    return sent


class Response:
    def __init__(self, status, fields, body, trailers, first_byte_ms, end_ms):
        self.status, self.fields, self.body, self.trailers = status, fields, body, trailers
        self.first_byte_ms, self.end_ms = first_byte_ms, end_ms

    def lines(self, name):
        return [value for each, value in self.fields if each == name.lower()]

    def __str__(self):
        fields = "".join(f"\n      {name}: {value}" for name, value in self.fields)
        return f"{self.status} in {self.end_ms:.0f} ms, first byte after {self.first_byte_ms or 0:.0f} ms{fields}\n      {self.body[:300]!r}"


class Reader:
    """Reads one response of HTTP/1.1, strictly: what ends early is broken."""

    def __init__(self, connection, begin):
        self.connection, self.begin, self.buffer, self.first = connection, begin, b"", None

    def more(self):
        data = self.connection.recv(65536)
        if not data:
            raise EOFError
        self.buffer += data

    def line(self):
        while b"\r\n" not in self.buffer:
            self.more()
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def fields(self):
        fields = []
        while line := self.line():
            name, _, value = line.partition(b":")
            fields.append((name.decode("latin-1").lower(), value.strip().decode("latin-1")))
        return fields

    def seen(self):
        if self.first is None:
            self.first = (time.monotonic() - self.begin) * 1000

    def exactly(self, length):
        while len(self.buffer) < length:
            if self.buffer:
                self.seen()
            self.more()
        if length:
            self.seen()
        taken, self.buffer = self.buffer[:length], self.buffer[length:]
        return taken

    def response(self, method):
        try:
            while True:
                status = int(self.line().split(b" ")[1])
                fields = self.fields()
                if status >= 200:
                    break
            body, trailers = self.body(method, status, dict(fields))
        except (EOFError, OSError, ValueError, IndexError) as error:
            raise Broken(repr(error)) from error
        return Response(status, fields, body, trailers, self.first, (time.monotonic() - self.begin) * 1000)

    def body(self, method, status, fields):
        if method == "HEAD" or status in (204, 304):
            return b"", {}
        if "chunked" in fields.get("transfer-encoding", "").lower():
            body = b""
            while size := int(self.line().split(b";")[0], 16):
                body += self.exactly(size)
                if self.exactly(2) != b"\r\n":
                    raise ValueError("a chunk is longer than its size")
            return body, dict(self.fields())
        if "content-length" in fields:
            return self.exactly(int(fields["content-length"])), {}
        body = b""
        try:
            while True:
                body += self.buffer
                self.buffer = b""
                self.more()
                self.seen()
        except EOFError:
            return body, {}


class Case:
    def __init__(self, case, defaults, address, gateway, stretch):
        self.case, self.defaults, self.address, self.gateway, self.stretch = case, defaults, address, gateway, stretch
        self.id = uuid.uuid4().hex
        self.at = case.get("at", "plain")
        self.values = Values()
        self.requests = [request for each in case["requests"] for request in [each] * each.get("times", 1)]
        self.responses = [None] * len(self.requests)
        self.errors = []
        self.kept = None

    def run(self):
        begin = time.monotonic()
        threads = []
        for index, request in enumerate(self.requests):
            if "at_ms" in request:
                thread = threading.Thread(target=self.later, args=(begin, index, request), daemon=True)
                threads.append(thread)
                thread.start()
            elif any("at_ms" in each for each in self.requests):
                # Others come while this one runs.
                thread = threading.Thread(target=self.guarded, args=(index, request), daemon=True)
                threads.append(thread)
                thread.start()
            else:
                time.sleep(request.get("after_ms", 0) / 1000 * self.stretch)
                self.await_runs(request.get("after_runs", 0))
                self.guarded(index, request)
                if self.errors:
                    break
        for thread in threads:
            thread.join(PATIENCE + 10)
        if not self.errors:
            self.guarded_expectations()
        if self.errors:
            return self.errors
        for check in (self.check_runs, self.check_claim):
            deadline = time.monotonic() + 2 * self.stretch
            while True:
                try:
                    check()
                    break
                except Failed as error:
                    if time.monotonic() > deadline:
                        return [str(error)]
                    time.sleep(0.05)
        return []

    def await_runs(self, count):
        """Waits until so many runs have ended and their claim is settled. A fixed time would be too short on a busy machine."""
        deadline = time.monotonic() + SLOW * self.stretch
        while count and time.monotonic() < deadline:
            if sum("ended" in run for run in self.runs()) >= count and self.record().get("state") != "in_progress":
                return
            time.sleep(0.05)

    def later(self, begin, index, request):
        time.sleep(max(0.0, begin + request["at_ms"] / 1000 * self.stretch - time.monotonic()))
        self.await_runs(request.get("after_runs", 0))
        self.guarded(index, request)

    def guarded(self, index, request):
        try:
            self.responses[index] = self.send(request)
        except Broken as error:
            self.responses[index] = error
        except Exception as error:  # noqa: BLE001: reported as the case's failure
            self.errors.append(f"request {index}: {error!r}")

    def send(self, request):
        given = {**self.defaults, **{name: value for name, value in request.items() if name != "headers"}}
        body, content_type = body_of(request.get("body"))
        fields = [(name.encode(), self.values.field(value)) for name, value in request.get("headers", [])]
        named = {name.lower() for name, _ in fields}
        if content_type:
            fields.append((b"Content-Type", content_type.encode()))
            named.add(b"content-type")
        fields += [(n.encode(), v.encode()) for n, v in self.defaults["headers"] if n.lower().encode() not in named]
        framing, pieces = framed(body, given["framing"])
        fields += framing
        if given["key"] is not None:
            fields.insert(0, (b"Idempotency-Key", self.values.field(given["key"])))
        if given["user"] is not None:
            fields.append((b"Vector-User", given["user"].encode()))
        if "do" in request:
            fields.append((b"Vector-Do", json.dumps(stretched(request["do"], self.stretch), separators=(",", ":")).encode()))
        fields.append((b"Vector-Case", self.id.encode()))
        host, port = self.address
        head = f"{given['method']} /{self.at}{given['path']} HTTP/{given.get('version', '1.1')}\r\nHost: {host}:{port}\r\n".encode()
        head += b"".join(name + b": " + value + b"\r\n" for name, value in fields) + b"\r\n"
        with self.connection(given) as connection:
            begin = time.monotonic()
            if "cut_after" in request:
                connection.sendall(head + sent_before(pieces, request["cut_after"]))
                connection.shutdown(socket.SHUT_WR)
                time.sleep(0.05)
                raise Broken("the upload was cut off")
            try:
                connection.sendall(head + b"".join(piece for piece, _ in pieces))
            except OSError:
                # It answers before it has read everything; the answer may be there.
                pass
            if "hang_up_after_ms" in request:
                time.sleep(request["hang_up_after_ms"] / 1000 * self.stretch)
                raise Broken("the caller hung up")
            time.sleep(given.get("reads_after_ms", 0) / 1000 * self.stretch)
            response = Reader(connection, begin).response(given["method"])
            if given.get("keep"):
                self.kept = connection.dup()
            return response

    def connection(self, given):
        """The connection of the last response for a request that keeps it, if the server did; else a fresh one."""
        kept, self.kept = self.kept, None
        if kept is not None:
            kept.settimeout(0.05)
            try:
                # More than the response is a fault: the next response begins with it.
                is_open = bool(kept.recv(1, socket.MSG_PEEK))
            except TimeoutError:
                is_open = True
            except OSError:
                is_open = False
            if is_open and given.get("keep"):
                kept.settimeout(SLOW * self.stretch)
                return kept
            kept.close()
        connection = socket.create_connection(self.address, timeout=SLOW * self.stretch)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def guarded_expectations(self):
        for index, request in enumerate(self.requests):
            if "expect" not in request:
                continue
            try:
                self.check(index, request["expect"])
            except Failed as error:
                self.errors.append(f"request {index}: {error}\n    got {self.responses[index]}")
                return

    def check(self, index, expected):
        response = self.responses[index]
        if expected == "broken":
            if not isinstance(response, Broken):
                raise Failed("a complete response came")
            return
        if isinstance(response, Broken):
            raise Failed("no complete response came")
        if "same_as" in expected:
            first = self.responses[expected["same_as"]]
            if (response.status, response.body) != (first.status, first.body):
                raise Failed(f"not the response of request {expected['same_as']}: {first}")
        for name in expected.get("same_fields", []):
            lines = self.responses[expected["same_as"]].lines(name)
            if not lines or response.lines(name) != lines:
                raise Failed(f"field {name} is {response.lines(name)}, not {lines} as before")
        if "one_of" in expected:
            if response.status not in expected["one_of"]:
                raise Failed(f"status is {response.status}, not one of {expected['one_of']}")
        equal("status", response.status, expected.get("status", response.status))
        for name, value in expected.get("headers", {}).items():
            check_field(name, response.lines(name), value)
        if "json" in expected:
            try:
                document = json.loads(response.body)
            except ValueError:
                raise Failed("the body is not JSON") from None
            for name, value in expected["json"].items():
                equal(f"member {name}", document.get(name) if isinstance(document, dict) else None, value)
        if "text" in expected:
            equal("text", response.body.decode("utf-8", "replace"), expected["text"])
        if "bytes" in expected:
            equal("bytes", len(response.body), expected["bytes"])
        if "decoded_bytes" in expected:
            equal("decoded bytes", len(decoded(response)), expected["decoded_bytes"])
        if "trailers" in expected:
            equal("trailers", response.trailers, expected["trailers"])
        if "first_byte_by_ms" in expected and (response.first_byte_ms or PATIENCE * 1000) > expected["first_byte_by_ms"] * self.stretch:
            raise Failed(f"the first byte came after {response.first_byte_ms:.0f} ms")
        if response.end_ms < expected.get("not_before_ms", 0) * self.stretch:
            raise Failed("it ended too early")
        if response.end_ms > expected.get("not_after_ms", PATIENCE * 1000) * self.stretch:
            raise Failed("it ended too late")

    def check_runs(self):
        runs = self.runs()
        expected = self.case["runs"]
        if expected == "any":
            return
        if len(runs) != len(expected):
            raise Failed(f"{len(runs)} runs, not {len(expected)}: {json.dumps(runs)}")
        for index, (run, members) in enumerate(zip(runs, expected)):
            for name, value in members.items():
                equal(f"{name} of run {index}", run.get(name), value)

    def check_claim(self):
        expected = self.case["claim"]
        if expected == "any":
            return
        record = self.record()
        if not record:
            equal("state of the claim", "none", expected)
            return
        equal("state of the claim", record["state"], expected)
        # A run that is killed is unknown when its lease ends.
        equal("on_lease_end of the claim", record["on_lease_end"], "unknown")

    def runs(self):
        """The runs of the handler, in the order of their start."""
        return json_of(f"http://{self.address[0]}:{self.address[1]}/runs?case={self.id}")

    def record(self):
        """The record of the claim of `$key` and `alice`; empty if there is none."""
        principal = hashlib.sha256(b"alice").hexdigest()
        contents = json.dumps({"key": self.values.of("$key"), "principal": principal}, separators=(",", ":"))
        global_id = hashlib.md5(f"{APP_KEY}\nvectors.{self.at}\n{contents}".encode()).hexdigest()
        try:
            return json_of(f"{self.gateway}/v1/claims/{global_id}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return {}


def equal(what, got, expected):
    if got != expected or isinstance(got, bool) != isinstance(expected, bool):
        raise Failed(f"{what} is {json.dumps(got)}, not {json.dumps(expected)}")


def check_field(name, lines, expected):
    if expected is None:
        fits = not lines
    elif isinstance(expected, dict):
        fits = expected["not"] not in lines
    elif isinstance(expected, list):
        fits = lines == expected
    elif expected.endswith("*"):
        fits = len(lines) == 1 and lines[0].startswith(expected[:-1])
    else:
        fits = lines == [expected]
    if not fits:
        raise Failed(f"field {name} is {lines}, not {json.dumps(expected)}")


def decoded(response):
    coding = ",".join(response.lines("content-encoding")).lower()
    if not coding or coding == "identity":
        return response.body
    if coding == "gzip":
        return gzip.decompress(response.body)
    if coding == "deflate":
        return zlib.decompress(response.body)
    raise Failed(f"content-encoding {coding} was not asked for")


def json_of(url):
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return json.load(answer)


# Processes


# Below the range of outgoing connections: such a connection could take a port before its server has started.
PORTS = range(11_000, 32_000)
ports = itertools.count(random.randrange(len(PORTS)))


def free_port():
    while True:
        port = PORTS[next(ports) % len(PORTS)]
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue


def gateway_program():
    if program := os.environ.get("ONCEGATE_BIN"):
        return program
    subprocess.run(
        [os.environ.get("CARGO", "cargo"), "build", "--quiet", "--all-features", "--bin", "oncegate"], cwd=ROOT, check=True, stdin=subprocess.DEVNULL
    )
    return str(pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "oncegate")


def stop(process):
    """Ends the process and its children, which have a group of their own."""
    for which in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, which)
        except ProcessLookupError:
            return
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue
        return


class Gateway:
    def __init__(self, folder):
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = pathlib.Path(folder, "gateway.log")
        address = self.url.removeprefix("http://")
        command = [gateway_program(), "serve", "--engine", "memory:", "--data-dir", folder]
        command += ["--listen", address, "--admin-listen", f"127.0.0.1:{free_port()}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=folder)
        deadline = time.monotonic() + 60
        while True:
            try:
                json_of(f"{self.url}/v1/claims/{'0' * 32}")
            except urllib.error.HTTPError:
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    stop(self.process)
                    sys.exit(f"middleware: the gateway did not start:\n{self.log.read_text()}")
                time.sleep(0.05)


class Application:
    def __init__(self, command, gateway, folder):
        self.log = pathlib.Path(folder, "application.log")
        environment = {**os.environ, "ONCEGATE_URL": gateway.url}
        environment.pop("ONCEGATE_DISABLED", None)
        environment.pop("ONCEGATE_CREDENTIAL", None)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--port", "0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment, text=True, start_new_session=True
            )
        self.lacks, self.address = set(), None
        watch = threading.Timer(180, lambda: stop(self.process))
        watch.start()
        for line in self.process.stdout:
            if line.startswith("lacks "):
                self.lacks.update(line[6:].replace(",", " ").split())
            elif line.startswith("listening "):
                host, _, port = line[10:].strip().rpartition(":")
                self.address = (host, int(port))
                break
        watch.cancel()
        if self.address is None:
            stop(self.process)
            sys.exit(f"middleware: {' '.join(command)} did not start:\n{self.log.read_text()[-4000:]}")
        # It may print more. The thread discards the output, so that the pipe does not fill.
        threading.Thread(target=lambda: self.process.stdout.read(), daemon=True).start()


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("Usage: "), add_help=True)
    parser.add_argument("--case", help="run only the cases whose name contains this text")
    parser.add_argument("--all", action="store_true", help="run the rare cases too, as with --case")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time (1)")
    stretch = float(os.environ.get("MIDDLEWARE_STRETCH", "1"))
    parser.add_argument("--stretch", type=float, default=stretch, help="multiply all times of the cases, for a busy machine (MIDDLEWARE_STRETCH, else 1)")
    parser.add_argument("--lacks", default="", help="what the application may lack, with commas; another lack fails")
    parser.add_argument("--name", default="", help="the name of the row in what is printed")
    parser.add_argument("--verbose", action="store_true", help="print the logs of gateway and application if a case fails")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    document = json.loads((HERE / "middleware.json").read_text())
    cases = [case for case in document["cases"] if (options.case in case["name"] if options.case else options.all or not case.get("rare"))]
    with tempfile.TemporaryDirectory() as folder:
        gateway = Gateway(folder)
        application = None
        try:
            application = Application(options.command, gateway, folder)
            code = report(cases, document["defaults"], gateway, application, options)
        finally:
            for part in (application, gateway):
                if part:
                    stop(part.process)
                    if options.verbose:
                        print(part.log.read_text(errors="replace")[-20000:], file=sys.stderr)
    sys.exit(code)


def report(cases, defaults, gateway, application, options):
    begin = time.monotonic()
    unnamed = application.lacks - set(filter(None, options.lacks.split(",")))
    taken = [case for case in cases if not application.lacks.intersection(case.get("needs", []))]

    def judged(case):
        begin = time.monotonic()
        errors = Case(case, defaults, application.address, gateway.url, options.stretch).run()
        seconds = time.monotonic() - begin
        if seconds > SLOW * options.stretch:
            # Such as a response whose connection stays open after it broke off.
            print(f"slow: {case['name']}: {seconds:.0f} s")
        return errors

    # A process that has just started may take longer for its first requests than the lease of a case.
    for _ in range(10 if taken else 0):
        if not Case(taken[0], defaults, application.address, gateway.url, options.stretch).run():
            break
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(zip(taken, pool.map(judged, taken)))
    failed = [(case, errors) for case, errors in results if errors]
    for case, errors in failed:
        print(f"FAILED {case['name']}", *(f"    {error}" for error in errors), sep="\n")
    for name in sorted(unnamed):
        print(f"FAILED the application lacks {name}, which --lacks does not name")
    skipped = len(cases) - len(taken)
    row = options.name or pathlib.Path(options.command[0]).name
    print(
        f"middleware: {row}: {len(taken) - len(failed)} of {len(taken)} cases passed"
        + (f", {skipped} skipped ({', '.join(sorted(application.lacks))})" if skipped else "")
        + f", {time.monotonic() - begin:.0f} s"
    )
    return 1 if failed or unnamed or not taken else 0


if __name__ == "__main__":
    main()
