# SPDX-License-Identifier: Apache-2.0
"""`baton run`: one answer in the terminal."""
import re
import subprocess

from worker import PATIENCE

QUESTION = "Name three colours."


def answer(run, *arguments, **options):
    ended = run("run", *arguments, "--max-tokens", "12", **options)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.decode()


def test_prompt_from_everywhere(run, model):
    said = answer(run, model, QUESTION)
    assert said.strip() and said.endswith("\n")
    assert answer(run, model, input=QUESTION.encode()) == said
    assert answer(run, model, "-", input=QUESTION.encode() + b"\n") == said
    assert answer(run, "--model-path", model, QUESTION) == said
    assert answer(run, model, QUESTION, "--system", "You are a pirate.") != said


def test_seeds(run, model):
    warm = ("--temperature", "1.5", "--seed", "5")
    assert (said := answer(run, model, QUESTION, *warm)) == answer(run, model, QUESTION, *warm)
    assert said != answer(run, model, QUESTION, *warm[:3], "6")


def test_stats(run, model):
    ended = run("run", model, QUESTION, "--stats", "--max-tokens", "5")
    assert re.fullmatch(r"start to first token [\d.]+ s; prompt \d+ tokens in [\d.]+ s \(\d+ tok/s\); "
                        r"answer 5 tokens, [\d.]+ tok/s\n", ended.stderr.decode())


def test_what_is_wrong_is_said(run, model):
    for arguments, status, part in [
            ((), 2, "MODEL is missing"),
            ((model, "a", "b"), 2, "too many"),
            ((model, "a", "--temprature", "1"), 2, "did you mean --temperature"),
            ((model, "a", "--max-tokens", "many"), 2, "--max-new-tokens"),
            ((model, ""), 1, "no prompt"),
            ((model, b"\xff\xfe"), 1, "not UTF-8"),
            ((model, b"\xff\xfe", "--system", "S"), 1, "not UTF-8"),
            ((model, "word " * 20000), 1, "8192"),
            ((model, "a", "--top-p", "5"), 1, "top_p")]:
        ended = run("run", *arguments)
        assert ended.returncode == status, (arguments[1:], ended.stderr)
        assert part in ended.stderr.decode(), (arguments[1:], ended.stderr)
        assert ended.stdout == b""


def test_reader_that_leaves_ends_it(baton, model):
    """As in `baton run ... | head -c 1`: nobody listens, so it stops long before 8000 tokens."""
    process = subprocess.Popen([baton, "run", model, "Write a story.", "--raw", "--max-tokens", "8000"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(30 * PATIENCE) == 1
    assert b"cannot be written" in process.stderr.read()
    process.stderr.close()
    with open("/dev/full", "w") as full:
        process = subprocess.run([baton, "run", model, "Hi", "--max-tokens", "3"], stdout=full,
                                 stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert process.returncode == 1
