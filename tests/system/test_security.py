# SPDX-License-Identifier: Apache-2.0
"""An API key, TLS, and limits on bodies: one worker that has them all."""
import http.client
import ssl
import subprocess

import openai
import pytest

from worker import PATIENCE, running

KEY = "a-secret"
BODY_MAX = 65536


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
                    "-keyout", folder / "key.pem", "-out", folder / "certificate.pem"],
                   check=True, capture_output=True)
    return folder / "certificate.pem", folder / "key.pem"


@pytest.fixture(scope="module")
def guarded(baton, model, certificate):
    with running(baton, model, "--api-key", KEY, "--max-body", str(BODY_MAX), "--ssl-certfile",
                 certificate[0], "--ssl-keyfile", certificate[1], "--served-model-name", "mine",
                 "--weight-version", "v7", "--http-threads", "2") as worker:
        yield worker


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def test_certificate_is_the_one_given(guarded, certificate):
    trusting = ssl.create_default_context(cafile=certificate[0])
    connection = http.client.HTTPSConnection(guarded.host, guarded.port, context=trusting)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
    with guarded.socket() as plain:  # HTTP on a TLS port
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            assert b"200 OK" not in plain.recv(4096)
        except ConnectionResetError:
            pass


def test_key_is_needed(guarded):
    body = {"text": "a", "sampling_params": {"max_new_tokens": 1}}
    assert guarded.get("/health").status == 200
    assert guarded.get("/metrics").status == 200
    for headers in ({}, bearer("wrong"), bearer(""), {"Authorization": KEY},
                    {"Authorization": f"Basic {KEY}"}):
        for reply in (guarded.post("/generate", body, headers=headers),
                      guarded.get("/v1/models", headers=headers)):
            assert reply.status == 401
            assert reply.headers["www-authenticate"] == "Bearer"
            assert "API key" in reply.error()["message"]
    assert guarded.post("/generate", body, headers=bearer(KEY)).status == 200


def test_openai_client_over_tls(guarded, certificate):
    context = ssl.create_default_context(cafile=certificate[0])
    for key, fits in ((KEY, True), ("other", False)):
        client = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0,
                               timeout=60 * PATIENCE,
                               http_client=openai.DefaultHttpxClient(verify=context))
        if not fits:
            with pytest.raises(openai.AuthenticationError):
                client.models.list()
            continue
        assert client.models.list().data[0].id == "mine"
        chunks = list(client.chat.completions.create(
            model="mine", messages=[{"role": "user", "content": "Hi"}], max_tokens=5, stream=True))
        assert chunks[-1].choices[0].finish_reason
        reply = client.completions.create(model="mine", prompt="a", max_tokens=1)
        assert reply.model_extra["metadata"] == {"weight_version": "v7"}


def test_bodies_have_a_limit(guarded):
    fits = b'{"text": "a", "sampling_params": {"max_new_tokens": 1}, "x": "'
    fits += b"y" * (BODY_MAX - len(fits) - 2) + b'"}'
    assert len(fits) == BODY_MAX
    assert guarded.post("/generate", fits, headers=bearer(KEY)).status == 200
    over = guarded.post("/generate", fits + b" ", headers=bearer(KEY))
    assert over.status == 413 and str(BODY_MAX) in over.error()["message"]
