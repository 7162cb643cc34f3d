# SPDX-License-Identifier: Apache-2.0
"""A `baton serve`, `prefill` or `decode` process and plain ways to talk to it: http.client and sockets, so that what is
on the wire is what is tested. The OpenAI client is used where its opinion counts."""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import time

# A build with sanitizers is many times slower; BATON_PATIENCE stretches every bound.
PATIENCE = float(os.environ.get("BATON_PATIENCE", "1"))


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def error(self):
        return self.json()["error"]


def wait_until(test, seconds=20, what="it"):
    """Polls; the bound is for a worker that hangs, not a measurement."""
    end = time.monotonic() + seconds * PATIENCE
    while not (value := test()):
        assert time.monotonic() < end, f"{what} did not come about within {seconds * PATIENCE} s"
        time.sleep(0.02)
    return value


def events(lines):
    """The data of a stream of events, parsed; [DONE] must be the last one."""
    done = False
    for line in lines:
        line = line.rstrip(b"\r\n")
        if not line:
            continue
        assert line.startswith(b"data: "), line
        assert not done, f"{line} after [DONE]"
        if line == b"data: [DONE]":
            done = True
        else:
            yield json.loads(line[6:])
    assert done, "the stream ended without [DONE]"


class Worker:
    def __init__(self, baton, model, *options, role="serve", port=0, env=None, stderr=None):
        self.log = tempfile.TemporaryFile()
        self.role = role
        self.process = subprocess.Popen(
            [baton, role, model, "--port", str(port), *options], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=stderr or self.log, env={**os.environ, **(env or {})})
        self.tls = self.bootstrap_port = None
        for line in self.process.stdout:
            if found := re.search(rb"bootstrap server on port (\d+)", line):
                self.bootstrap_port = int(found[1])
            if found := re.search(rb"listening on (https?)://([0-9.]+):(\d+)", line):
                self.scheme, self.host = found[1].decode(), found[2].decode()
                self.port = int(found[3])
                break
        else:
            raise RuntimeError(f"baton {role} ended with {self.process.wait()}:\n{self.errors()}")
        if self.scheme == "https":
            self.tls = ssl.create_default_context()
            self.tls.check_hostname = False
            self.tls.verify_mode = ssl.CERT_NONE

    @property
    def url(self):
        return f"{self.scheme}://{self.host}:{self.port}"

    def errors(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    # ---- requests ----

    def connect(self):
        timeout = 60 * PATIENCE
        if self.tls:
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout,
                                               context=self.tls)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None):
        with contextlib.closing(self.connect()) as connection:
            if not isinstance(body, (bytes, str, type(None))):
                body = json.dumps(body)
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def ask(self, path, **body):
        reply = self.post(path, body)
        assert reply.status == 200, reply.body
        return reply.json()

    def stream(self, path, **body):
        """The events of a stream, as they come."""
        with contextlib.closing(self.connect()) as connection:
            connection.request("POST", path, json.dumps({**body, "stream": True}))
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
            assert reply.headers["content-type"].startswith("text/event-stream")
            yield from events(reply)

    def socket(self, receive_bytes=None):
        plain = socket.socket()
        if receive_bytes:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        plain.settimeout(180 * PATIENCE)
        plain.connect((self.host, self.port))
        return plain

    def send(self, path, body, **options):
        """A socket on which the request is out and the answer is still to be read."""
        plain = self.socket(**options)
        text = json.dumps(body).encode()
        plain.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                      % (path.encode(), len(text), text))
        return plain

    # ---- what it says about itself ----

    def metrics(self):
        """{name with labels: number}; the label of the model is left out."""
        found = {}
        for line in self.get("/metrics").body.decode().splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = re.sub(r'model_name="[^"]*",?', "", name).replace("{}", "")
                found[name] = float(value)
        return found

    def metric(self, name):
        return self.metrics()[name]

    def wait_idle(self):
        wait_until(lambda: (m := self.metrics())["sglang:num_running_reqs"] == 0
                   and m["sglang:num_queue_reqs"] == 0, what="an idle worker")

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) * 1024

    # ---- its end ----

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, seconds=30):
        return self.process.wait(seconds * PATIENCE)

    def close(self):
        """Ends it as an operator does, and expects it to have been there and to go quietly. One
        whose end was waited for is another matter."""
        if self.process.returncode is None:
            gone = self.process.poll()
            assert gone is None, f"baton {self.role} ended by itself with {gone}:\n{self.errors()}"
            self.signal()
            try:
                status = self.wait()
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"baton {self.role} does not end:\n{self.errors()}")
            assert status == 0, f"baton {self.role} ended with {status}:\n{self.errors()}"
        self.process.stdout.close()
        self.log.close()


@contextlib.contextmanager
def running(*arguments, **options):
    worker = Worker(*arguments, **options)
    try:
        yield worker
    finally:
        worker.close()
