#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The texts that the tokenizers are compared on: every script, and everything that splits text in
unusual places. Made anew each time from a fixed seed, so that no text has to be kept.

usage: tokenizer_corpus.py OUT [SPECIAL ...]     SPECIAL: names of special tokens to spell in texts

OUT gets the number of texts, then each text's length and bytes; numbers are 32 bits, little-endian.
"""
import random
import struct
import sys
import unicodedata

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío.",
    "Pijamalı hasta yağız şoföre çabucak güvendi; İstanbul'da ılık.",
    "Tiếng Việt có nhiều dấu: ấ ầ ẩ ẫ ậ, ở đâu?",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "Բարեւ, աշխարհ։ გამარჯობა, მსოფლიო!",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם",
    "نص حكيم له سر قاطع وذو شأن عظيم. مَرْحَبًا ١٢٣٤٥٦",
    "यह हिन्दी का एक वाक्य है, क्षत्रिय श्री १२३।",
    "বাংলা ভাষায় একটি বাক্য। ৪৫৬",
    "தமிழ் மொழியில் ஒரு வாக்கியம்.",
    "తెలుగు ಕನ್ನಡ മലയാളം සිංහල",
    "ภาษาไทยไม่มีช่องว่างระหว่างคำ ๑๒๓",
    "ພາສາລາວ ភាសាខ្មែរ မြန်မာဘာသာ",
    "བོད་སྐད། ᠮᠣᠩᠭᠣᠯ ኣማርኛ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ",
    "我能吞下玻璃而不伤身体。繁體中文也可以：「你好」！",
    "いろはにほへと ちりぬるを。カタカナとｶﾀｶﾅ、漢字１２３。",
    "다람쥐 헌 쳇바퀴에 타고파. 한글은 ᄒ\u1161\u11ab 자모로도 쓴다.",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒎𝒂𝒕𝒉, ℵ₀ ≤ 2^ℵ₀, ½ ¾ ² ³ Ⅷ ⑨ ㊿ 𝟘𝟙",
    "𐌰𐌱𐌲 𒀀𒀁 𓀀𓀁 𞤀𞤁 🀄 𠀀𠮷 𰀀 𱍐 \U0002ebf0 \U00031350",
]

PIECES = [
    "😀😃😄", "👩‍👩‍👧‍👦", "👍🏽", "🇩🇪🇫🇷🇯🇵", "🏳️‍🌈", "🫠🫡🪿🫨", "1️⃣ #️⃣", "❤️‍🔥", "☃️", "🧑🏿‍🚀",
    "I'm you're he's we've they'll I'd isn't", "I'M YOU'RE HE'S WE'VE THEY'LL I'D", "’s ‘t '", "o'clock 'tis rock'n'roll",
    "it'ſ 'S 'ſ", "''''", "'s's's", "don't'", "x'll'd",
    "0", "1", "12", "123", "1234", "12345", "1234567890123456789", "3.14159", "1,000,000", "0x1F", "1e-9", "2024-11-05", "٣٤٥", "१२३४", "１２３４", "½⅓",
    " ", "  ", "   ", "    ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r", " \n", "\n ", " \n \n ", "\t \t", "\u00a0", "\u2003", "\u3000", "\u200b", "\u180e", "\u0085", "\u2028", "\ufeff", "\x0b\x0c", "\x1c\x1d", "\x00", "\x7f",
    "e\u0301", "a\u0300\u0323", "\u0301", "\u0323\u0301\u0307", "o\u0308\u0304", "\u1112\u1161\u11ab", "\u212b\u2126\u212a", "ﬁﬂ", "①", "ſ", "İ", "ǅ", "\u0958", "क\u093c", "\ufb1d", "Å", "q\u0307\u0323", "\u0344",
    "def f(x):\n    return x**2 # 平方\n", "for (int i = 0; i < n; i++) {\n\t\tsum += a[i];\n\t}\n", "#include <stdio.h>\r\nint main(void) { return 0; }\r\n",
    "https://example.org/a/b?c=d&e=%20#f", "user@example.org", "C:\\path\\to", "snake_case_name", "CamelCaseName", "SCREAMING", "iPhone", "McDONALD's",
    "<div class=\"x\">&nbsp;</div>", "{\"key\": [1, 2, {\"a\": null}]}", "SELECT * FROM t WHERE a<>'b';", "$x$ \\frac{1}{2}", "```c\nint x;\n```", "------", "======", "......", "!!!???", "…—–", "«»„“”", "。，、！？", "(((", ")))]]", "$€£¥", "°±×÷", "~`@#%^&*|\\/", "/usr//lib/", "a/b/c\n/d",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "abababababababababab", "=" * 70, " " * 70, "\n" * 40, "ÀÀÀÀÀÀ", "哈哈哈哈哈哈哈哈", "ааааааа",
    "▁", "▁▁", "Ġ", "Ċ", "a▁b", "<0x0A>", "<0xE4><0xBD>", "<s>", "</s>", "<unk>", "[INST]", "<|im_start|>user\n", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|im_start", "im_start|>", "<｜begin▁of▁sentence｜>", "<think>", "<tool_call>",
]

BROKEN = [
    b"\x80", b"\xff", b"\xc0\x80", b"\xc3", b"\xe4\xbd", b"\xe4\xbd\x28", b"\xf0\x9f\x98", b"\xf0\x9f", b"\xed\xa0\x80\xed\xb0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"a\xe4b\xbdc", b"\xc3\xc3\xa9", b"\xfe\xfe\xff\xff", b"ok \xe2\x82",
]


def blocks():
    """One line for each 128 characters that hold some: in order, and as words."""
    dice = random.Random(128)
    for start in list(range(0, 0x3400, 128)) + list(range(0x4d80, 0x5000, 128)) + list(range(0x9f80, 0xac80, 128)) + list(range(0xd780, 0x11000 - 128, 128)) + list(range(0x10000, 0x20000, 128)) + [0x20000, 0x2a680, 0x2f800, 0x30000, 0x313c0, 0xe0000, 0xe0100]:
        codes = [c for c in range(start, start + 128) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
        if not codes:
            continue
        yield "".join(map(chr, codes))
        words = ("".join(chr(dice.choice(codes)) for _ in range(dice.randint(1, 7))) for _ in range(12))
        yield " ".join(words)


def mixtures(count, special):
    """Random neighbours: whatever has a meaning of its own, next to everything else."""
    dice = random.Random(4242)
    words = [word for sentence in SENTENCES for word in sentence.split(" ")]
    pieces = PIECES + special
    for _ in range(count):
        parts = []
        for _ in range(dice.randint(1, 14)):
            kind = dice.random()
            if kind < 0.45:
                parts.append(dice.choice(pieces))
            elif kind < 0.8:
                parts.append(dice.choice((" ", "", " ", "\n")) + dice.choice(words))
            elif kind < 0.9:
                parts.append(dice.choice((" ", "\n", "\t", "  ")) * dice.randint(1, 5))
            else:
                parts.append("".join(chr(dice.choice((dice.randint(0, 0x7f), dice.randint(0, 0x24ff), dice.randint(0x10000, 0x1ffff)))) for _ in range(dice.randint(1, 6))))
        yield "".join(parts).encode("utf-8", "surrogatepass")


def garbage(count):
    dice = random.Random(99)
    for _ in range(count):
        yield bytes(dice.randrange(256) for _ in range(dice.randint(1, 40)))


def texts(special=()):
    """All texts, as bytes; some are not UTF-8."""
    special = list(special)
    lines = [""] + SENTENCES + PIECES + special + [" ".join(SENTENCES), "\n".join(PIECES)]
    lines += [a + b for a in ("", " ", "\n", "x") for b in special[:6]] + [b + " x" for b in special[:6]]
    lines += list(blocks())
    data = [line.encode() for line in lines] + BROKEN + [b"x " + b + b" y" for b in BROKEN]
    return data + list(mixtures(1200, special)) + list(garbage(150))


def write(path, lines):
    with open(path, "wb") as out:
        out.write(struct.pack("<I", len(lines)))
        for line in lines:
            out.write(struct.pack("<I", len(line)) + line)


if __name__ == "__main__":
    write(sys.argv[1], texts(sys.argv[2:]))
