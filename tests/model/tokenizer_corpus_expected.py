#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Hugging Face's `tokenizers` makes of the corpus, for real vocabularies.

usage: tokenizer_corpus_expected.py OUT VOCABULARY ...

A VOCABULARY is a GGUF file (its tokens and merges are put into a tokenizer.json whose steps are those
of the family's own one) or a folder with a tokenizer.json. For each, OUT/<name>/ gets
tokenizer.json, `corpus` (tokenizer_corpus.py) and `expected`, which holds 32-bit numbers,
little-endian, and lists of them or of bytes, each after its length:

    for each text:     ids, special tokens as text
                       ids, special tokens parsed
                       ids, special tokens parsed, and those around the text added
                       the second list decoded with special tokens, and without them
    number of lists of random ids, for each: ids, decoded
"""
import array
import functools
import json
import pathlib
import random
import re
import struct
import sys

import tokenizers

import tokenizer_corpus

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS + r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK3 = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^""" + "\r\n" + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[" + "\r\n" + r"]*|\s*[" + "\r\n" + r"]+|\s+(?!\S)|\s+"
CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-"
    "\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
HAN_AND_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def digits():
    return {"type": "Digits", "individual_digits": True}


NFC = {"type": "NFC"}
# How the families' own tokenizer.json files say it: normalizer, pre-tokenizers, ignore_merges.
FAMILIES = {
    "gpt-2": (None, [byte_level(True)], False),
    "mpt": (NFC, [byte_level(True)], False),
    "llama-bpe": (None, [split(LLAMA3 % r"\p{N}{1,3}"), byte_level(False)], True),
    "qwen2": (NFC, [split(LLAMA3 % r"\p{N}"), byte_level(False)], False),
    "deepseek-r1-qwen": (None, [split(LLAMA3 % r"\p{N}"), byte_level(False)], False),
    "qwen35": (NFC, [split(QWEN35), byte_level(False)], False),
    "smollm": (None, [digits(), byte_level(True)], False),
    "starcoder": (None, [digits(), byte_level(True)], False),
    "refact": (None, [digits(), byte_level(True)], False),
    "command-r": (NFC, [digits(), byte_level(True)], False),
    "tekken": (None, [split(TEKKEN), byte_level(False)], True),
    "gpt-4o": (None, [split(O200K), byte_level(False)], False),
    "deepseek-llm": (None, [split("[\r\n]"), split(r"\s?[" + CASED + "]+"), split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"), split(r"\s+$"), split(HAN_AND_HANGUL), digits(), byte_level(False)], False),
    "deepseek-coder": (None, [split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(HAN_AND_HANGUL), digits(), byte_level(False)], False),
    "deepseek-v3": (None, [split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK3), byte_level(False)], False),
}
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Gguf:
    """The metadata of a GGUF file."""

    def __init__(self, path):
        with open(path, "rb") as self.file:
            self.file.seek(16)
            self.values = {}
            for _ in range(self.number("Q")):
                key = self.string()
                self.values[key] = self.value(self.number("I"))

    def number(self, code):
        return struct.unpack("<" + code, self.file.read(struct.calcsize("<" + code)))[0]

    def string(self):
        return self.file.read(self.number("Q")).decode("utf-8", "surrogateescape")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            kind, count = self.number("I"), self.number("Q")
            if kind == 8:
                return [self.string() for _ in range(count)]
            items = array.array(NUMBERS[kind])
            items.frombytes(self.file.read(count * items.itemsize))
            return items
        return self.number(NUMBERS[kind])

    def get(self, key, default=None):
        return self.values.get("tokenizer.ggml." + key, default)


def merges_of_scores(tokens, kinds, scores):
    """Every way to make a token of two; the best score first."""
    vocab = {token: id for id, token in enumerate(tokens) if kinds[id] in (1, 4)}
    merges = []
    for token, id in vocab.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                merges.append((-scores[id], len(left), [left, right]))
    merges.sort(key=lambda merge: merge[:2])
    return [merge[2] for merge in merges]


def document(gguf, family, prefix_scheme=None):
    """A tokenizer.json with the tokens of a GGUF file."""
    tokens, kinds = gguf.get("tokens"), gguf.get("token_type")
    spm = gguf.get("model") == "llama"
    added = [
        {"id": id, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": kinds[id] == 4 and not spm, "special": kinds[id] in (2, 3)}
        for id, token in enumerate(tokens) if kinds[id] in (2, 3, 4) and token
    ]
    vocab = {token: id for id, token in enumerate(tokens)}  # the library numbers those that are missing anew
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": spm, "byte_fallback": spm, "ignore_merges": False, "vocab": vocab}
    if spm:
        model["unk_token"] = tokens[gguf.get("unknown_token_id", 0)]
        model["merges"] = merges_of_scores(tokens, kinds, gguf.get("scores"))
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
        steps = None
        if prefix_scheme:
            normalizer = None
            steps = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prefix_scheme, "split": False}
        decoder = {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    else:
        normalizer, list_of_steps, model["ignore_merges"] = FAMILIES[family]
        steps = {"type": "Sequence", "pretokenizers": list_of_steps}
        decoder = byte_level(True)
        model["merges"] = [merge.split(" ") for merge in gguf.get("merges")]
    bos = gguf.get("bos_token_id")
    template = None
    if bos is not None and gguf.get("add_bos_token", spm or family in ("llama-bpe", "tekken")):
        name = tokens[bos]
        template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                    "special_tokens": {name: {"id": name, "ids": [bos], "tokens": [name]}}}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": steps, "post_processor": template, "decoder": decoder, "model": model}


def numbers(items):
    return struct.pack(f"<I{len(items)}I", len(items), *items)


def text(string):
    data = string.encode("utf-8", "surrogatepass")
    return struct.pack("<I", len(data)) + data


def random_ids(size, count=300):
    dice = random.Random(7)
    for _ in range(count):
        yield [dice.randrange(size) for _ in range(dice.randint(1, 12))]


def letter_table():
    """GPT-2's letters and their bytes."""
    own = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


LETTERS = letter_table()


class Decoder:
    """Decoding as the library does it, but for two things that detokenizer.c explains: an added token is
    its own text, even if all its letters could stand for bytes, and of a run of byte tokens only those
    are replaced that are broken."""

    def __init__(self, tokenizer, content):
        self.tokenizer = tokenizer
        self.fallback = content["model"].get("byte_fallback")
        self.added = {token["id"]: token["special"] for token in content["added_tokens"]}

    @functools.cache
    def bytes_of(self, id):
        token = self.tokenizer.id_to_token(id)
        if id not in self.added and all(letter in LETTERS for letter in token):
            return bytes(LETTERS[letter] for letter in token)
        return token.encode()

    def runs(self, tokens):
        out, run = "", b""
        for token in tokens + [""]:
            byte = re.fullmatch("<0x([0-9A-F]{2})>", token)
            if byte:
                run += bytes([int(byte[1], 16)])
                continue
            while run:
                try:
                    out, run = out + run.decode(), b""
                except UnicodeDecodeError as error:
                    out += run[:error.start].decode() + "\ufffd" * (error.end - error.start)
                    run = run[error.end:]
            out += token.replace("▁", " ")
        return out.removeprefix(" ")

    def decode(self, ids, skip_special):
        ids = [id for id in ids if not (skip_special and self.added.get(id))]
        tokens = [self.tokenizer.id_to_token(id) for id in ids]
        theirs = self.tokenizer.decode(ids, skip_special_tokens=False)
        if self.fallback:
            ours = self.runs(tokens)
            same = "\ufffd" not in ours
        else:
            ours = b"".join(map(self.bytes_of, ids)).decode("utf-8", "replace")
            same = not any(id in self.added and all(letter in LETTERS for letter in token) for id, token in zip(ids, tokens))
        assert not same or ours == theirs, (ids, ours, theirs)
        return ours


def expect(tokenizer, lines, decoder):
    for line in lines:
        string = line.decode("utf-8", "replace")
        tokenizer.encode_special_tokens = True
        yield numbers(tokenizer.encode(string, add_special_tokens=False).ids)
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(string, add_special_tokens=False).ids
        yield numbers(ids)
        yield numbers(tokenizer.encode(string).ids)
        yield text(decoder.decode(ids, False))
        yield text(decoder.decode(ids, True))
    lists = list(random_ids(tokenizer.get_vocab_size()))
    yield struct.pack("<I", len(lists))
    for ids in lists:
        ids = [id for id in ids if tokenizer.id_to_token(id) is not None]
        yield numbers(ids)
        yield text(decoder.decode(ids, False))


def produce(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    data = json.dumps(content, ensure_ascii=False)
    tokenizer = tokenizers.Tokenizer.from_str(data)
    special = [token["content"] for token in content["added_tokens"]]
    lines = tokenizer_corpus.texts(special[:12] + special[-12:])
    (folder / "tokenizer.json").write_text(data, encoding="utf-8")
    tokenizer_corpus.write(folder / "corpus", lines)
    with open(folder / "expected.new", "wb") as out:
        out.writelines(expect(tokenizer, lines, Decoder(tokenizer, content)))
    (folder / "expected.new").rename(folder / "expected")
    print(f"{folder.name}: {len(lines)} texts", flush=True)


def with_family(path, family):
    """The bytes of a GGUF file without tensors, its text split the way of another family."""
    data = pathlib.Path(path).read_bytes()
    key = b"tokenizer.ggml.pre" + struct.pack("<I", 8)
    at = data.index(key) + len(key)
    (length,) = struct.unpack_from("<Q", data, at)
    return data[:at] + struct.pack("<Q", len(family)) + family.encode() + data[at + 8 + length:]


def produce_variants(out, name, path, gguf):
    """GPT-2's vocabulary split the way of families that have no file here, and the ways to treat the first
    space of SentencePiece."""
    if name == "llama-spm":
        for scheme in ("first", "never"):
            produce(out / f"{name}@{scheme}", document(gguf, None, scheme))
    if name == "gpt-2":
        for family in ("tekken", "gpt-4o", "deepseek-v3", "deepseek-r1-qwen", "starcoder", "command-r"):
            produce(out / f"{name}@{family}", document(gguf, family))
            (out / f"{name}@{family}" / "vocabulary.gguf").write_bytes(with_family(path, family))


def main():
    out = pathlib.Path(sys.argv[1])
    for path in map(pathlib.Path, sys.argv[2:]):
        name = path.stem.removeprefix("ggml-vocab-")
        if path.is_dir():
            produce(out / name, json.loads((path / "tokenizer.json").read_text(encoding="utf-8")))
            continue
        gguf = Gguf(path)
        produce_variants(out, name, path, gguf)
        produce(out / name, document(gguf, gguf.get("pre")))


if __name__ == "__main__":
    main()
