# SPDX-License-Identifier: Apache-2.0
"""A prefill and a decode worker, and the request that a router sends to both: the same body, with the
room in which they meet."""
import concurrent.futures
import http.client
import os
import random
import signal
import socket
import threading
import time

from worker import PATIENCE, Reply, Worker, wait_until

# `make test-fleet` sets it: so many prompts for each fleet, and all that takes long.
COUNT = int(os.environ.get("BATON_FLEET", "0"))

WORDS = ("river stone window garden letter winter morning engine copper island paper music "
         "harbour silver market bridge shadow lantern forest signal").split()
# One thread each: a fleet shares the machine's cores. Prompts of any length go over. Where everything
# is slow, 200 requests may take longer than a hand-over has by itself.
WORKER = ("--threads", "1", "--max-total-tokens", "16384",
          "--transfer-timeout", str(int(300 * PATIENCE)))
ALWAYS = ("--local-prefill-tokens", "0")


def prompt_of(words, seed=0):
    """A text of so many words, each time the same."""
    draw = random.Random(seed * 1000003 + words)
    return " ".join(draw.choice(WORDS) for _ in range(words))


def greedy(words, tokens=8, seed=0, **more):
    return {"text": prompt_of(words, seed),
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
            **more}


def new_room():
    return random.getrandbits(63)


def outcome(reply):
    """What must be the same, whoever computed it: all but names and times."""
    found = reply.json()
    for one in found if isinstance(found, list) else [found]:
        for key in ("id", "created", "system_fingerprint"):
            one.pop(key, None)
        if isinstance(one.get("usage"), dict):
            one["usage"].pop("prompt_tokens_details", None)
        for key in ("id", "e2e_latency", "cached_tokens", "queue_time", "response_sent_to_client_ts"):
            one.get("meta_info", {}).pop(key, None)
    return found


class Leg:
    """A request on its way to one worker; who sent it may leave."""

    def __init__(self, worker, path, body):
        self.socket = worker.send(path, body)
        self.reply = None
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        answer = http.client.HTTPResponse(self.socket, method="POST")
        try:
            answer.begin()
            self.reply = Reply(answer.status, answer.headers, answer.read())
        except (OSError, http.client.HTTPException) as error:
            self.reply = error
        self.ended = time.monotonic()

    def leave(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def wait(self, seconds=30):
        """The reply, or the exception if there is none."""
        self.thread.join(seconds * PATIENCE)
        assert not self.thread.is_alive(), f"no reply within {seconds * PATIENCE} s"
        return self.reply


class Fleet:
    def __init__(self, baton, model, *options, prefill=(), decode=(), decode_model=None,
                 decode_first=False):
        self.baton, self.model = baton, model
        self.decode_model = decode_model or model
        self.prefill_options = (*WORKER, *options, *prefill)
        self.decode_options = (*WORKER, *options, *(() if "--local-prefill-tokens" in decode
                                                    else ALWAYS), *decode)
        self.prefill = self.decode = None
        self.start_prefill()
        if decode_first:
            self.decode_options += ("--prefill", self.prefill.url)
        self.start_decode()

    def start_prefill(self):
        """Again on the same ports, if there was one."""
        old = self.prefill
        self.prefill = Worker(self.baton, self.model, "--bootstrap-port",
                              str(old.bootstrap_port if old else 0), *self.prefill_options,
                              role="prefill", port=old.port if old else 0)

    def start_decode(self):
        old = self.decode
        self.decode = Worker(self.baton, self.decode_model, *self.decode_options, role="decode",
                             port=old.port if old else 0)

    # ---- requests ----

    def bootstrap(self, room=None):
        return {"bootstrap_host": "127.0.0.1", "bootstrap_port": self.prefill.bootstrap_port,
                "bootstrap_room": new_room() if room is None else room}

    def pair(self, path, body, room=None):
        """Both replies. A leg whose worker is gone gives its exception instead."""
        body = {**body, **self.bootstrap(room)}

        def leg(worker):
            try:
                return worker.post(path, body)
            except (OSError, http.client.HTTPException) as error:
                return error

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            legs = [pool.submit(leg, worker) for worker in (self.prefill, self.decode)]
            return legs[0].result(), legs[1].result()

    def ask(self, path, room=None, **body):
        prefill, decode = self.pair(path, body, room)
        assert decode.status == 200, decode.body
        assert prefill.status == 200, prefill.body
        return outcome(decode)

    def legs(self, body, path="/generate", room=None):
        """The same, with the legs in one's own hands: prefill's, decode's."""
        body = {**body, **self.bootstrap(room)}
        return [Leg(worker, path, body) for worker in (self.prefill, self.decode)]

    # ---- what must be so at the end ----

    def workers(self):
        return [worker for worker in (self.prefill, self.decode)
                if worker.process.returncode is None]

    def wait_clean(self, seconds=30):
        """Nobody waits, no page is held by anybody but the cache, and the cache can be emptied."""
        for worker in self.workers():
            def idle():
                metrics = worker.metrics()
                return not any(metrics[name] for name in HELD)
            try:
                wait_until(idle, seconds, f"a clean {worker.role} worker")
            except AssertionError as late:
                held = {name: worker.metrics()[name] for name in HELD}
                raise AssertionError(f"{late}: {held}\n{worker.errors()}") from None
            flushed = worker.post("/flush_cache?timeout=20", b"")
            assert flushed.status == 200, flushed.body
            wait_until(lambda: worker.metric('baton:pages{state="cached"}') == 0, 5,
                       "an empty cache")  # it is published a moment later

    def kill(self, worker):
        """kill -9; the moment of its death."""
        worker.signal(signal.SIGKILL)
        killed = time.monotonic()
        worker.wait()
        return killed

    def close(self):
        for worker in (self.prefill, self.decode):
            if worker:
                worker.close()


HELD = ("sglang:num_running_reqs", "sglang:num_queue_reqs", "baton:limbo_rooms",
        "baton:landed_reqs", "sglang:num_prefill_bootstrap_queue_reqs",
        "sglang:num_prefill_inflight_queue_reqs", "sglang:num_decode_prealloc_queue_reqs",
        "sglang:num_decode_transfer_queue_reqs", 'baton:pages{state="used"}',
        'baton:pages{state="quarantined"}', 'baton:pages{state="locked"}')
