#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What our template interpreter is compared with: jinja2, set up as transformers sets it up.

Holds also what the comparing tests share: a Python that has jinja2 (downloaded once into the cache,
$BATON_CACHE or build/cache), and the program under test, which renders one JSON line after the
other (test_template_runner.c).
"""
import contextlib
import datetime
import fcntl
import functools
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOWNLOADS = pathlib.Path(os.environ.get("BATON_CACHE") or ROOT / "build" / "cache")
CACHE = DOWNLOADS / "template"
JINJA = "jinja2==3.1.6"
MARKUPSAFE = "markupsafe==3.0.2"  # what `safe` makes depends on it
SKIP = 77
NOW = 1763216345  # 2025-11-15 14:19:05 UTC, in all tests
os.environ["TZ"] = "UTC"


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIP)


@contextlib.contextmanager
def locked():
    """One test at a time fills the cache."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ensure_jinja(packages=(JINJA, MARKUPSAFE), name="venv"):
    """Starts this script again with a Python that has the packages, unless this one is it."""
    venv = CACHE / name
    python = venv / "bin" / "python"
    done = venv / "complete"
    if pathlib.Path(sys.prefix).resolve() == venv.resolve():
        return
    with locked():
        if not done.exists():
            try:
                subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
                subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                                *packages], check=True, timeout=600)
            except (OSError, subprocess.SubprocessError) as problem:
                skip(f"pip cannot install {' '.join(packages)}: {problem}")
            done.touch()
    os.execv(python, [str(python), "-B", *sys.argv])


def environment(extended=False):
    """jinja2 as in transformers.utils.chat_template_utils. `extended` adds the two things in which
    ours goes further: lists and dicts can be changed, and there is a filter from_json."""
    import jinja2
    import jinja2.ext
    from jinja2 import sandbox

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

        @jinja2.pass_eval_context
        def _pass(self, context, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    kind = sandbox.SandboxedEnvironment if extended else sandbox.ImmutableSandboxedEnvironment
    env = kind(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: datetime.datetime.fromtimestamp(NOW).strftime(format)
    if extended:
        env.filters["from_json"] = json.loads
    return env


def with_defaults(context):
    return {"tools": None, "documents": None, "add_generation_prompt": False, **context}


class Oracle:
    def __init__(self, compile=None):
        self.compile = functools.lru_cache(4)(compile or environment().from_string)
        self.compile_extended = functools.lru_cache(4)(environment(extended=True).from_string)

    def render(self, source, context):
        """(text, None) or (None, what went wrong)."""
        context = json.loads(json.dumps(with_defaults(context)))
        try:
            return self.compile(source).render(**context), None
        except Exception as problem:  # noqa: BLE001: a template may raise anything
            if not self.is_extension(problem):
                return None, f"{type(problem).__name__}: {problem}"
        context = json.loads(json.dumps(with_defaults(context)))
        try:
            return self.compile_extended(source).render(**context), None
        except Exception as problem:  # noqa: BLE001
            return None, f"{type(problem).__name__}: {problem}"

    @staticmethod
    def is_extension(problem):
        text = str(problem)
        return "is unsafe" in text or "'from_json'" in text


class Runner:
    """The program under test, fed with all cases at once."""

    def __init__(self, program):
        self.program = program

    def render(self, cases):
        lines = [json.dumps({"template": source, "context": context, "now": NOW}) for source, context in cases]
        done = subprocess.run([self.program], input="\n".join(lines) + "\n", text=True, encoding="utf-8",
                              stdout=subprocess.PIPE, timeout=600)
        replies = [json.loads(line) for line in done.stdout.split("\n") if line]
        if done.returncode or len(replies) != len(cases):
            at = cases[len(replies)] if len(replies) < len(cases) else None
            print(f"the program under test ended with {done.returncode} at case {len(replies)}: {at}")
            sys.exit(1)
        return replies


def differs(expected, problem, reply):
    """None if our reply is right, else a sentence."""
    if problem is None:
        if "text" not in reply:
            return f"ours fails: {reply['error']}"
        if reply["text"] != expected:
            return "the texts differ"
        return None
    if "text" in reply:
        return f"ours renders, jinja2 fails: {problem}"
    if problem.startswith("TemplateError: ") and problem[15:1000] not in reply["error"]:
        return f"ours lacks the message of raise_exception: {reply['error']}"
    if problem.startswith("RecursionError"):
        return None if reply["code"] == "BATON_ELIMIT" else f"ours fails otherwise: {reply['error']}"
    if reply["code"] not in ("BATON_EINVAL", "BATON_EUNSUPPORTED"):
        return f"ours fails with {reply['code']}: {reply['error']}"
    return None


def show(source, context, expected, problem, reply):
    print("--- template:", source if len(source) < 3000 else source[:3000] + "...")
    print("--- context: ", json.dumps(context, ensure_ascii=False)[:3000])
    print("--- jinja2:  ", repr(expected)[:3000] if problem is None else problem)
    print("--- ours:    ", repr(reply.get("text"))[:3000] if "text" in reply else reply)
