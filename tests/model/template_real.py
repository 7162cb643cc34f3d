#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders the chat templates of real models, ours against jinja2, with many conversations each.

The templates come out of the source package of llama-cpp-python (the files of models/templates, and
those inside two of its sources) and out of the default model; they are cached, never committed.

usage: template_real.py PROGRAM [--transformers] [--list] [NAME]
  --transformers  transformers itself compiles the templates, not our copy of its set-up
  --list          a line for each template
  NAME            only templates whose names contain it; differences are shown in full
"""
import ast
import os
import pathlib
import re
import struct
import subprocess
import sys
import tarfile
import tempfile

import template_conversations
import template_oracle

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
FOLDER = template_oracle.CACHE / f"templates-{VERSION}"
TRANSFORMERS = ("transformers", template_oracle.JINJA, template_oracle.MARKUPSAFE)


def download(folder):
    """The source package, without building it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--no-binary", PACKAGE, "--dest", folder, f"{PACKAGE}=={VERSION}"]
    try:
        subprocess.run(command, check=True, timeout=900)
    except (OSError, subprocess.SubprocessError) as problem:
        template_oracle.skip(f"pip cannot download {PACKAGE} {VERSION}: {problem}")
    return next(pathlib.Path(folder).glob("llama_cpp_python-*.tar.gz"))


def unescape(text):
    """A string literal of C++, without its quotes."""
    return ast.literal_eval('"' + text + '"')


def strings_of_cpp(source):
    """The templates among the cases of test-chat-template.cpp, with the name before each."""
    case = re.compile(r'/\* \.name= \*/ "((?:[^"\\]|\\.)*)",\s*/\* \.template_str= \*/ (?:u8)?"((?:[^"\\\n]|\\.)*)"')
    for number, match in enumerate(case.finditer(source)):
        yield f"{number:02} {unescape(match[1])}", unescape(match[2])


def strings_of_python(source):
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            if node.targets[0].id.endswith("_CHAT_TEMPLATE"):
                yield node.targets[0].id, node.value.value


def unpack(package):
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tarfile.open(package) as archive:
        for member in archive:
            name = pathlib.PurePosixPath(member.name)
            found = []
            if name.suffix == ".jinja" and name.parent.name == "templates":
                found = [(name.stem, archive.extractfile(member).read().decode())]
            elif name.name == "test-chat-template.cpp":
                found = strings_of_cpp(archive.extractfile(member).read().decode())
            elif name.name == "llama_chat_format.py" and name.parent.name == "llama_cpp":
                found = strings_of_python(archive.extractfile(member).read().decode())
            for title, text in found:
                (FOLDER / (title.replace("/", "-") + ".jinja")).write_bytes(text.encode())
    (FOLDER / "complete").touch()


GGUF_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def gguf_value(file, kind):
    """Skips a value of a GGUF file; a string is returned."""
    if kind == 8:
        return file.read(struct.unpack("<Q", file.read(8))[0])
    if kind == 9:
        inner, count = struct.unpack("<IQ", file.read(12))
        if inner in GGUF_SIZES:
            file.seek(GGUF_SIZES[inner] * count, 1)
        else:
            for _ in range(count):
                gguf_value(file, inner)
        return None
    file.seek(GGUF_SIZES[kind], 1)
    return None


def template_of_gguf(path):
    with open(path, "rb") as file:
        _, _, _, count = struct.unpack("<4sIQQ", file.read(24))
        for _ in range(count):
            key = gguf_value(file, 8)
            value = gguf_value(file, struct.unpack("<I", file.read(4))[0])
            if key == b"tokenizer.chat_template":
                return value.decode()
    return None


def default_model():
    script = template_oracle.ROOT / "scripts" / "get-default-model.sh"
    done = subprocess.run([script], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "BATON_CACHE": str(template_oracle.DOWNLOADS)})
    if done.returncode:
        print("the default model is not here; its template is left out")
        return None
    return template_of_gguf(done.stdout.strip())


def templates():
    with template_oracle.locked():
        if not (FOLDER / "complete").exists():
            with tempfile.TemporaryDirectory(dir=template_oracle.CACHE) as folder:
                unpack(download(folder))
    for path in sorted(FOLDER.glob("*.jinja")):
        yield path.stem, path.read_bytes().decode()
    smol = default_model()
    if smol:
        yield "SmolLM2 (default model)", smol


def transformers_compile():
    from transformers.utils import chat_template_utils
    compiled = chat_template_utils._compile_jinja_template

    def compile(source):
        template = compiled(source)
        template.environment.globals["strftime_now"] = template_oracle.environment().globals["strftime_now"]
        return template

    return compile


def compare(oracle, runner, name, source, contexts, show):
    """(rendered alike, refused alike, what differs)"""
    replies = runner.render([(source, context) for _, context in contexts])
    rendered = refused = 0
    differences = []
    for (title, context), reply in zip(contexts, replies):
        expected, problem = oracle.render(source, context)
        difference = template_oracle.differs(expected, problem, reply)
        if difference:
            differences.append(f"{title}: {difference}")
            if show and len(differences) <= 3:
                template_oracle.show(name, context, expected, problem, reply)
        elif problem is None:
            rendered += 1
        else:
            refused += 1
    return rendered, refused, differences


def main():
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    by_transformers = "--transformers" in sys.argv
    if by_transformers:
        template_oracle.ensure_jinja(TRANSFORMERS, "venv-transformers")
    else:
        template_oracle.ensure_jinja()
    oracle = template_oracle.Oracle(transformers_compile() if by_transformers else None)
    runner = template_oracle.Runner(words[0])
    contexts = list(template_conversations.contexts())
    count = failed = total = 0
    for name, source in templates():
        if len(words) > 1 and words[1] not in name:
            continue
        rendered, refused, differences = compare(oracle, runner, name, source, contexts, len(words) > 1)
        count += 1
        total += rendered
        if differences or "--list" in sys.argv:
            print(f"{name}: {rendered} rendered alike, {refused} refused alike, {len(differences)} differ")
        for difference in differences[:5]:
            print("   ", difference)
        if differences:
            failed += 1
        elif rendered == 0:
            print(f"{name}: no conversation renders, so nothing was compared")
            failed += 1
    print(f"{count} templates with {len(contexts)} conversations each: {total} texts alike, {failed} templates differ")
    return 1 if failed or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
