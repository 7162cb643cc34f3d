#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden files of the tokenizer tests, which need no download, out of Hugging Face's
`tokenizers` (version in the files). Run it again only when the tests change:

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tokenizers==0.23.3
    /tmp/venv/bin/python tests/model/tokenizer_corpus_golden.py tests/model/golden

tokenizer_bytes.json, tokenizer_characters.json    small tokenizers, trained here
tokenizer_*_expected.json                          texts and what the library makes of them
tokenizer_steps.json                               single steps: texts and what becomes of them
tokenizer_classes.json                             which characters the classes of patterns hold
"""
import json
import pathlib
import sys
import zlib

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import tokenizer_corpus

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TRAINING = tokenizer_corpus.SENTENCES * 3 + tokenizer_corpus.PIECES + [
    "The tokens of a text are the words of a model, and the merges are its spelling.",
    "Text that is split in pieces, pieces that are merged into tokens, tokens that are numbers.",
] * 3
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
ADDED = [
    AddedToken("<mask>", lstrip=True, special=True),
    AddedToken("<sep>", rstrip=True, special=True),
    AddedToken("<|im|>", special=True),
    AddedToken("cat", single_word=True, normalized=True),
    AddedToken("<think>", normalized=False),
    AddedToken("<think", normalized=False),
    AddedToken("é!", normalized=True),
    AddedToken("e\u0301?", normalized=True),
]
TEXTS = [
    "a <mask> b", "a\u3000\n <mask>b", "<sep>   x <sep>\t\n", "<mask><sep> <mask>", "cat cats concat cat. (cat) cat_ cat2 \u00e9cat", "cat",
    "<think>hm</think><think >", "<|im_start|>user\nhi<|im_end|>", "<|im|><|im_|><|im_start|", "e\u0301! \u00e9! x\u0065\u0301!", "e\u0301? \u00e9?x", "</s><s></s>",
    "<s", " <s> ", "\n<s>\n", "  <mask>  <sep>  ",
]


def dump(value):
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def write(folder, name, content):
    """JSON with a line for each item of its lists and objects, so that a change shows as one."""
    parts = []
    for key, value in content.items():
        if isinstance(value, list):
            parts.append(dump(key) + ":[\n" + ",\n".join(map(dump, value)) + "]")
        elif isinstance(value, dict):
            parts.append(dump(key) + ":{\n" + ",\n".join(dump(k) + ":" + dump(v) for k, v in value.items()) + "}")
        else:
            parts.append(dump(key) + ":" + dump(value))
    (folder / name).write_text("{" + ",\n".join(parts) + "}\n", encoding="ascii")


def expected(tokenizer):
    lines = [text.encode() for text in TEXTS] + tokenizer_corpus.texts(SPECIAL)
    keep = len(TEXTS) + 1 + len(tokenizer_corpus.SENTENCES) + len(tokenizer_corpus.PIECES) + len(SPECIAL)
    chosen = lines[:keep] + lines[keep + 2::97]
    cases = []
    for line in chosen:
        string = line.decode("utf-8", "replace")
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(string, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        parsed = tokenizer.encode(string, add_special_tokens=False).ids
        around = tokenizer.encode(string).ids
        decoded = [tokenizer.decode(parsed, skip_special_tokens=skip) for skip in (False, True)]
        if "\ufffd" in decoded[0] and "\ufffd" not in string:  # decoding differs: detokenizer.c says where
            decoded = [None, None]
        cases.append({"text": line.hex(), "plain": plain, "parsed": parsed, "around": around if len(around) < 20 else None,
                      "decoded": decoded[0], "without": decoded[1]})
    return {"made_by": "tokenizers " + tokenizers.__version__, "cases": cases}


def bytes_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(TRAINING, trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_tokens(ADDED)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A $B", special_tokens=[("<s>", 0), ("</s>", 1)])
    return tokenizer


def characters_tokenizer():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    special = ["<unk>"] + SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator([line[:40] for line in TRAINING], trainers.BpeTrainer(vocab_size=900, special_tokens=special, limit_alphabet=120, show_progress=False))
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] <= len(SPECIAL)]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_tokens([token for token in ADDED if not token.normalized])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    return tokenizer


def step_cases():
    texts = ["", " ", "Hey friend!", "a,b;;c  d", "  lead and trail  ", "x12y345 ٣٤", "one\ntwo\r\n\r\n three", "¿qué? «sí»…", "a▁b ▁ c", "漢字、かな", "\u0301a\u0301 e\u0301!", "a\u180eb\u0085c\u3000d", "ß ſ ﬁ ① \u212b \u1e9b\u0323", "aaa,,,aaa"]
    letters = Regex("[aeiou]+")
    splits = [pre_tokenizers.Split(pattern, behavior, invert) for pattern in (letters, ",", Regex(r"\s+"), Regex(r"\p{N}{1,2}+"), Regex(r"\s+$"), Regex(r"^\s*"), Regex(r"(?=a)"), Regex(r"\h"), Regex(r"[^\S\n]+"), Regex(r"\p{Han}+|\p{^L}"))
              for behavior in ("isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous") for invert in (False, True)]
    splits += [pre_tokenizers.Digits(True), pre_tokenizers.Digits(False), pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Punctuation("merged_with_previous")]
    splits += [pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split) for scheme in ("always", "first", "never") for split in (True, False)]
    splits += [pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.Punctuation(), pre_tokenizers.Split(Regex(r"\s"), "merged_with_next")]),
               pre_tokenizers.Sequence([pre_tokenizers.Split(",", "isolated"), pre_tokenizers.Metaspace(prepend_scheme="first", split=False)])]
    rules = [normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.Prepend("▁"), normalizers.Replace(" ", "▁"), normalizers.Replace(Regex("a+"), "b"), normalizers.Replace(Regex("x*"), "-"), normalizers.Replace("a", ""),
             normalizers.Strip(), normalizers.Strip(True, False), normalizers.Strip(False, True), normalizers.Sequence([normalizers.NFD(), normalizers.Replace(Regex(r"\p{M}"), ""), normalizers.Prepend("x")])]

    def described(step):
        return json.loads(step.__getstate__())

    return {"made_by": "tokenizers " + tokenizers.__version__, "texts": texts,
            "pre_tokenizers": [{"step": described(step), "pieces": [[piece for piece, _ in step.pre_tokenize_str(text)] for text in texts]} for step in splits],
            "normalizers": [{"step": described(step), "results": [step.normalize_str(text) for text in texts]} for step in rules]}


def class_cases():
    everything = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF)
    classes = [r"\s", r"\S", r"\w", r"\d", r"\h", r"\p{Han}", r"\P{L}", r"\p{Thai}"] + [rf"\p{{{name}}}" for name in "L Lu Ll Lt Lm Lo M N Nd Nl No P S Z".split()]
    cases = {}
    for name in classes:
        found = normalizers.Replace(Regex(f"[^{name}]"), "").normalize_str(everything)
        data = b"".join(ord(character).to_bytes(4, "little") for character in found)
        cases[name] = {"count": len(found), "crc32": zlib.crc32(data)}
    return {"made_by": "tokenizers " + tokenizers.__version__, "classes": cases}


def main():
    folder = pathlib.Path(sys.argv[1])
    for name, tokenizer in (("bytes", bytes_tokenizer()), ("characters", characters_tokenizer())):
        write(folder, f"tokenizer_{name}.json", json.loads(tokenizer.to_str()))
        write(folder, f"tokenizer_{name}_expected.json", expected(tokenizer))
    write(folder, "tokenizer_steps.json", step_cases())
    write(folder, "tokenizer_classes.json", class_cases())


if __name__ == "__main__":
    main()
