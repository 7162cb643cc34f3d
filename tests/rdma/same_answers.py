# SPDX-License-Identifier: Apache-2.0
"""A prefill and a decode worker over the backend that is named (verbs, in a VM with an RDMA device) answer
20 prompts like `baton serve` on the same machine, byte for byte; and it was that backend that carried
them. The model is a small one of random numbers.

usage: same_answers.py BACKEND [BATON]"""
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "system"))  # beside it in the VM

from fleet import Fleet, outcome  # noqa: E402
from random_folder import TOKENIZER, TOKENS, random_folder  # noqa: E402
from worker import running, wait_until  # noqa: E402

# Emulated machines take a tenth of a second for a token, busy ones more.
PROMPTS, LONG, LONGEST = 20, 60, 280


def request(number):
    """From a few tokens to several pages, and one that is sent layer by layer; greedy and seeded in turn."""
    length = LONGEST if number == PROMPTS - 1 else 3 + LONG * number // PROMPTS
    ids = [2 + (number * 7919 + place * 104729) % (TOKENS - 2) for place in range(length)]
    sampling = {"max_new_tokens": 4, "ignore_eos": True, "temperature": 0}
    if number % 2:
        sampling.update(temperature=0.9, sampling_seed=number)
    return {"input_ids": ids, "sampling_params": sampling, "rid": f"prompt-{number}",
            "return_logprob": True}


def all_in_turn(ask):
    return [ask(request(number)) for number in range(PROMPTS)]


def serve(baton, model):
    with running(baton, model, "--threads", "1") as worker:
        return all_in_turn(lambda body: outcome(worker.post("/generate", body)))


def carried(worker, number):
    """Which backend had it and how many bytes, as the worker tells when it is over."""
    def ended():
        told = worker.get(f"/requests/prompt-{number}").json()
        return told if told["finish"] else None
    told = wait_until(ended, 20, f"the end of prompt {number} at {worker.role}")
    return told["backend"], told["bytes"]


def hand_over(baton, model, backend):
    pair = Fleet(baton, model, "--transfer-backend", backend, "--verify-transfer")
    answers = all_in_turn(lambda body: pair.ask("/generate", **body))
    for number in range(PROMPTS):
        sent, came = carried(pair.prefill, number), carried(pair.decode, number)
        assert sent[0] == came[0] == backend and sent[1] == came[1] > 0, (number, sent, came)
    assert pair.decode.metric("baton:recomputed_total") == 0
    pair.wait_clean()
    pair.close()
    return answers


def main(backend, baton="./baton"):
    beside = HERE / TOKENIZER.name
    with tempfile.TemporaryDirectory() as folder:
        model = random_folder(pathlib.Path(folder), num_hidden_layers=2, num_key_value_heads=2,
                              max_position_embeddings=512,
                              tokenizer=beside if beside.exists() else TOKENIZER)
        expected, got = serve(baton, model), hand_over(baton, model, backend)
    for number, (right, one) in enumerate(zip(expected, got)):
        assert one == right, f"prompt {number}: {one} instead of {right}"
    print(f"{PROMPTS} prompts over {backend}: the same answers as from one worker")


main(*sys.argv[1:])
