# SPDX-License-Identifier: Apache-2.0
"""Clients that leave, that read slowly, and that are many."""
import asyncio
import json
import time

from worker import PATIENCE, events, wait_until

ENDLESS = {"max_new_tokens": 8000, "ignore_eos": True}


def running(worker):
    return worker.metric("sglang:num_running_reqs")


def test_client_that_leaves_a_stream(worker):
    worker.wait_idle()
    aborted = worker.metric("sglang:num_aborted_requests_total")
    with worker.send("/generate", {"text": "Go on.", "stream": True,
                                   "sampling_params": ENDLESS}) as plain:
        plain.recv(4096)
        wait_until(lambda: running(worker) == 1, what="a request that runs")
    wait_until(lambda: running(worker) == 0, what="the end of a request whose client left")
    assert worker.metric("sglang:num_aborted_requests_total") == aborted + 1
    assert worker.metric("baton:clients_left_total") >= 1


def test_client_that_leaves_before_anything_came(worker):
    worker.wait_idle()
    for body in ({"text": "Go on.", "sampling_params": ENDLESS},
                 {"text": ["Go on."] * 100, "sampling_params": {**ENDLESS, "n": 3}}):
        with worker.send("/generate", body):
            wait_until(lambda: running(worker) > 0, what="a request that runs")
        worker.wait_idle()
    with worker.send("/v1/chat/completions", {"messages": [
            {"role": "user", "content": "word " * 200000}], "max_tokens": 9}):
        pass  # gone while a tokenizer thread reads it
    worker.wait_idle()
    assert worker.get("/health_generate").status == 200


def test_slow_reader(worker):
    """Events that grow, to a client that takes none of them. Its stream is held, the worker's memory
    stays, others are answered; when it reads at last it gets everything."""
    worker.wait_idle()
    tokens = 160
    held = worker.metric("baton:streams_held_total")
    before = worker.resident_bytes()
    body = {"text": "Go on.", "stream": True, "return_logprob": True, "top_logprobs_num": 128,
            "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}}
    with worker.send("/generate", body, receive_bytes=4096) as plain:
        wait_until(lambda: worker.metric("baton:streams_held_total") > held, 60, "a held stream")
        worker.ask("/generate", text="Others", sampling_params={"max_new_tokens": 4})
        worker.wait_idle()  # it goes on to its end whether anybody reads or not
        grown = worker.resident_bytes() - before
        print(f"\nslow reader: {grown / 1e6:.1f} MB more")
        assert grown < 64e6
        plain.settimeout(60 * PATIENCE)
        reader = plain.makefile("rb")
        while reader.readline() not in (b"\r\n", b""):
            pass
        got = list(events(chunks_joined(reader)))
    assert got[-1]["meta_info"]["completion_tokens"] == tokens
    assert len(got) < tokens  # those held were not sent one by one


def chunks_joined(reader):
    """The lines of a chunked body."""
    rest = b""
    while size := int(reader.readline(), 16):
        rest += reader.read(size)
        assert reader.read(2) == b"\r\n"
        *lines, rest = rest.split(b"\n")
        yield from lines


def test_a_thousand_clients(worker):
    body = json.dumps({"prompt": "a b", "max_tokens": 2, "temperature": 0}).encode()
    request = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
               b"Content-Length: %d\r\n\r\n" % len(body)) + body

    async def one(all_connected):
        reader, writer = await asyncio.open_connection(worker.host, worker.port)
        await all_connected.wait()
        writer.write(request)
        reply = await reader.read()
        writer.close()
        return reply

    async def everybody():
        all_connected = asyncio.Event()
        clients = [asyncio.create_task(one(all_connected)) for _ in range(1000)]
        while worker_connections() < 1000:
            await asyncio.sleep(0.05)
        all_connected.set()
        return await asyncio.wait_for(asyncio.gather(*clients), 120 * PATIENCE)

    def worker_connections():
        return worker.metric("baton:http_connections")

    began = time.monotonic()
    replies = asyncio.run(everybody())
    print(f"\n1000 clients: {time.monotonic() - began:.1f} s")
    texts = set()
    for reply in replies:
        head, body = reply.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 200 "), reply
        texts.add(json.loads(body)["choices"][0]["text"])
    assert len(texts) == 1
    worker.wait_idle()
