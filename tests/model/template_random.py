#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Thousands of small templates from a grammar, ours against jinja2: the same text, or both refuse.

usage: template_random.py PROGRAM [SEED [COUNT]]
"""
import random
import sys

import template_oracle

CONTEXT = {
    "n": 7, "zero": 0, "neg": -3, "big": 123456789012, "pi": 3.14159, "half": 0.5, "huge": 1e22, "tiny": 1.5e-7,
    "s": "Hello World", "t": "  padded \n", "u": "Grüße, 世界 🙂!", "e": "", "q": "it's \"quoted\" <b>&</b>\\", "csv": "a,b,,c",
    "lines": "one\ntwo\r\n\nthree ", "digits": "42", "word": "straße", "yes": True, "no": False, "nil": None,
    "xs": [3, 1, 2, 2], "ys": ["b", "A", "c", "a"], "mixed": [1, "a", None, 2.5, True, [1], {"k": 1}], "empty": [], "nested": [[1, 2], [3, 4], []],
    "d": {"a": 1, "B": "two", "c": [1, 2], "items": "shadowed"}, "ed": {}, "dd": {"x": {"y": {"z": "deep"}}, "list": [{"k": 1}, {"k": 2}]},
    "ms": [{"role": "system", "content": "Be good.", "n": 2}, {"role": "user", "content": "Hi ü", "n": 1},
           {"role": "assistant", "content": None, "calls": [{"name": "f", "arguments": {"x": 1.0}}]}, {"role": "user", "content": "", "n": 3}],
}
STRINGS = ["s", "t", "u", "e", "q", "csv", "lines", "digits", "word"]
NUMBERS = ["n", "zero", "neg", "big", "pi", "half", "huge", "tiny"]
LISTS = ["xs", "ys", "mixed", "empty", "nested", "ms"]
DICTS = ["d", "ed", "dd"]
OTHERS = ["yes", "no", "nil", "missing"]


class Grammar:
    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.names = []  # variables that the template has made
        self.macros = []
        self.loops = 0

    def pick(self, *choices):
        return self.dice.choice(choices)

    def chance(self, share):
        return self.dice.random() < share

    # ---- expressions ----------------------------------------------------------------------

    def literal_string(self):
        text = self.pick("", "a", "x y", ",", "\\n", "é", "ab,c", "%s", "{}", "\\t-", "<i>", "\\x41\\u00e9", "it", "o", "l", " ", "1", "0x1f", "3.7")
        return f'"{text}"' if self.chance(0.3) else f"'{text}'"

    def string(self, depth):
        if depth <= 0 or self.chance(0.3):
            return self.pick(*STRINGS) if self.chance(0.6) else self.literal_string()
        a = self.string(depth - 1)
        choice = self.dice.randrange(13)
        if choice == 0:
            return f"{self.operand(a)} + {self.operand(self.string(depth - 1))}"
        if choice == 1:
            return f"({a} ~ {self.any(depth - 1)})"
        if choice == 2:
            return f"({a})" + self.slice(depth)
        if choice == 3:
            return f"({a})." + self.pick("strip()", "upper()", "lower()", "title()", "capitalize()", "lstrip()", "rstrip('!')", "strip(' d')",
                                         "replace('l', 'L')", "replace('', '-')", "replace('o', '', 1)", "center(14, '*')", "ljust(9)", "rjust(9, '.')", "zfill(6)",
                                         "removeprefix('He')", "removesuffix('d')", "split(',')[0]", "split()[-1]", "rsplit('o', 1)[0]", "partition(',')[2]",
                                         "rpartition('o')[0]", "format(1, 'b', x=2)", "split('l')|join('+')", "join(['a', 'b'])", "join('xyz')")
        if choice == 4:
            return f"{self.operand(a)}|" + self.pick("upper", "lower", "title", "capitalize", "trim", "trim('H d')", "replace('o', '0')", "replace('o', '0', 1)", "e", "string",
                                                    "center(20)", "indent", "indent(2, true)", "indent('> ', first=true, blank=true)", "truncate(8)", "truncate(8, true, '~')",
                                                    "reverse", "default('x')", "d('x', true)", "tojson", "first", "last", "safe", "escape", "forceescape", "format(1)")
        if choice == 5:
            return f"{self.operand(self.any(depth - 1))}|" + self.pick("string", "tojson", "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(separators=(',', ':'))",
                                                                      "tojson(sort_keys=true)", "upper", "trim", "default('dflt')", "d('dflt', boolean=true)")
        if choice == 6:
            return f"{self.operand(self.list(depth - 1))}|join({self.literal_string()})"
        if choice == 7:
            return f"({a} if {self.boolean(depth - 1)} else {self.string(depth - 1)})"
        if choice == 8:
            return f"({self.literal_string()} * {self.pick('0', '1', '3', 'n')})"
        if choice == 9:
            return self.pick("'%s and %s' % (", "'%r|%5s' % (", "'%-6s|%s' % (") + f"{self.any(depth - 1)}, {self.any(depth - 1)})"
        if choice == 10:
            return self.pick("'%d-%05d' % (", "'%+d|%x' % (", "'% d|%3d' % (") + f"{self.integer(depth - 1)}, {self.integer(depth - 1)})"
        if choice == 11:
            return self.pick("'{} {!r}'", "'{0}{1}{0}'", "'{:>8}|{:<5}'", "'{:^9}{:*<4}'") + f".format({self.string(depth - 1)}, {self.string(depth - 1)})"
        return self.pick("'{:.2f}|{:5.1f}'", "'{:e}|{}'", "'{:,}|{:+}'", "'{:g}|{:08.3f}'") + f".format({self.number(depth - 1)}, {self.number(depth - 1)})"

    def slice(self, depth):
        def bound():
            return self.pick("", "0", "1", "2", "-1", "-2", "n", "100", "-100", "none")
        return "[" + bound() + ":" + bound() + self.pick("", ":", ":2", ":-1", ":-2", ":1") + "]"

    def operand(self, text):
        return f"({text})" if self.chance(0.9) else text

    def integer(self, depth):
        if depth <= 0 or self.chance(0.4):
            return self.pick("n", "zero", "neg", "1", "2", "10", "0x1f", "1_000", "big")
        choice = self.dice.randrange(6)
        if choice == 0:
            return f"({self.integer(depth - 1)} {self.pick('+', '-', '*', '//', '%')} {self.integer(depth - 1)})"
        if choice == 1:
            return f"({self.list(depth - 1)})|length"
        if choice == 2:
            return f"({self.string(depth - 1)})." + self.pick("find('o')", "count('l')", "rfind('l')", "count('')", "find('l', 3)", "find('', 99)", "count('l', 0, -2)")
        if choice == 3:
            return f"-{self.operand(self.integer(depth - 1))}"
        if choice == 4:
            return f"{self.operand(self.any(depth - 1))}|int" + self.pick("", "(-1)", "(default=9)", "(0, 16)")
        return f"({self.string(depth - 1)})|length"

    def number(self, depth):
        if depth <= 0 or self.chance(0.3):
            return self.pick(*NUMBERS) if self.chance(0.6) else self.pick("0.1", "1.5", "2e3", "1e16", "1e-5", "12345.678", "5")
        choice = self.dice.randrange(6)
        if choice == 0:
            return f"({self.number(depth - 1)} {self.pick('+', '-', '*', '/', '//', '%')} {self.number(depth - 1)})"
        if choice == 1:
            return f"{self.operand(self.number(depth - 1))}|" + self.pick("round", "round(2)", "round(1, 'floor')", "round(0, 'ceil')", "abs", "float", "int")
        if choice == 2:
            return f"{self.operand(self.string(depth - 1))}|float" + self.pick("", "(1.5)")
        if choice == 3:
            return f"({self.pick('xs', '[1, 2.5]', 'range(4)', 'empty')})|{self.pick('sum', 'min', 'max', 'first', 'last')}"
        if choice == 4:
            return f"({self.pick('2', 'n', 'half')} ** {self.pick('2', '0', 'half', '-1', '3')})"
        return self.integer(depth - 1)

    def list(self, depth):
        if depth <= 0 or self.chance(0.35):
            return self.pick(*LISTS)
        a = self.list(depth - 1)
        choice = self.dice.randrange(11)
        if choice == 0:
            return "[" + ", ".join(self.any(depth - 1) for _ in range(self.dice.randrange(4))) + "]"
        if choice == 1:
            return "(" + "".join(self.any(depth - 1) + ", " for _ in range(self.dice.randrange(1, 4))) + ")"
        if choice == 2:
            return f"({a})" + self.slice(depth)
        if choice == 3:
            return f"({a} + {self.list(depth - 1)})"
        if choice == 4:
            return f"({a})|" + self.pick("list", "sort", "sort(reverse=true)", "unique|list", "reverse|list", "sort(case_sensitive=true)", "batch(2)|list", "batch(3, 0)|list",
                                         "slice(2)|list", "slice(3, 'f')|list", "map('string')|list", "map('upper')|list", "select|list", "reject|list", "select('string')|list",
                                         "select('number')|list", "reject('none')|list", "select('in', xs)|list", "select('mapping')|list", "select('gt', 1)|list", "map('length')|list")
        if choice == 5:
            return "ms|" + self.pick("map(attribute='role')|list", "map(attribute='n', default=0)|list", "selectattr('role', 'equalto', 'user')|list", "selectattr('n')|list",
                                     "rejectattr('n', 'defined')|list", "rejectattr('content')|list", "selectattr('content', 'none')|list", "sort(attribute='role')",
                                     "selectattr('n', 'defined')|sort(attribute='n', reverse=true)", "map(attribute='calls.0.name')|list", "selectattr('role', 'in', ['user'])|list",
                                     "map('length')|list", "unique(attribute='role')|list", "sort(attribute='role,content')", "map('tojson')|list", "map('items')|map('list')|list")
        if choice == 6:
            return f"({self.string(depth - 1)})." + self.pick("split(',')", "split()", "split('l', 1)", "rsplit('l')", "splitlines()", "splitlines(true)", "partition('o')", "split(none, 1)",
                                                            "rsplit(none, 1)", "split('ll')", "rsplit(',', 2)")
        if choice == 7:
            return f"({self.dict(depth - 1)})" + self.pick(".items()|list", ".keys()|list", ".values()|list", "|dictsort", "|items|list", "|dictsort(by='value')", "|list", "|dictsort(true, reverse=true)")
        if choice == 8:
            return f"range({self.pick('3', 'n', '1, 5', '5, 0, -2', '0')})" + self.pick("", "|list", "[1:]", "[::-1]")
        if choice == 9:
            return f"({a} * {self.pick('0', '2')})"
        return f"({self.string(depth - 1)})|list"

    def dict(self, depth):
        if depth <= 0 or self.chance(0.4):
            return self.pick(*DICTS) if self.chance(0.7) else "ms[0]"
        choice = self.dice.randrange(4)
        if choice == 0:
            return "{" + ", ".join(f"{self.pick('1', 'none', 'true', '(1, 2)', self.literal_string(), self.literal_string())}: {self.any(depth - 1)}" for _ in range(self.dice.randrange(4))) + "}"
        if choice == 1:
            return f"dict(a={self.any(depth - 1)}, b=1)"
        if choice == 2:
            return f"dict({self.dict(depth - 1)}, z={self.any(depth - 1)})"
        return f"({self.dict(depth - 1)} if {self.boolean(depth - 1)} else {self.dict(depth - 1)})"

    def boolean(self, depth):
        if depth <= 0:
            return self.pick("yes", "no", "true", "false", "True", "n", "e", "missing")
        choice = self.dice.randrange(10)
        if choice == 0:
            return f"({self.boolean(depth - 1)} {self.pick('and', 'or')} {self.boolean(depth - 1)})"
        if choice == 1:
            return f"not {self.boolean(depth - 1)}"
        if choice == 2:
            return f"({self.number(depth - 1)} {self.pick('<', '<=', '>', '>=', '==', '!=')} {self.number(depth - 1)})"
        if choice == 3:
            return f"({self.any(depth - 1)} {self.pick('==', '!=')} {self.any(depth - 1)})"
        if choice == 4:
            return f"({self.any(depth - 1)} {self.pick('in', 'not in')} {self.list(depth - 1)})"
        if choice == 5:
            return f"({self.literal_string()} {self.pick('in', 'not in')} {self.string(depth - 1)})"
        if choice == 6:
            return f"({self.any(depth - 1)}) is {self.pick('', 'not ')}" + self.pick("defined", "undefined", "none", "string", "number", "mapping", "iterable", "sequence", "boolean", "true", "false",
                                                                                   "integer", "float", "callable", "sameas none", "in [1, 'a']", "eq(1)", "ne 2", "escaped")
        if choice == 7:
            return f"({self.integer(depth - 1)}) is {self.pick('odd', 'even', 'divisibleby 3', 'divisibleby(2)', 'gt 1', 'le(3)', 'lessthan 5')}"
        if choice == 8:
            return f"({self.string(depth - 1)})." + self.pick("startswith('H')", "endswith(('d', '!'))", "isdigit()", "isalpha()", "isspace()", "isupper()", "islower()", "startswith('l', 2)", "isalnum()")
        return f"({self.string(depth - 1)} {self.pick('<', '>', '==')} {self.string(depth - 1)})"

    def access(self, depth):
        return self.pick("d.a", "d['B']", "d.c[1]", "d['items']", "dd.x.y.z", "dd['x'].y['z']", "dd.list[1].k", "dd.list.0.k", "ms[0].role", "ms[-1]['content']", "ms[1].nothing",
                         "xs[5]", "xs[-1]", "xs.0", "s[0]", "u[6]", "s[-1]", "d.nope", "d['nope']", "dd.get('x', {}).get('y')", "d.get('q')", "d.get('q', 1)", "nested[0][1]",
                         "missing", "ms|length", "mixed[5].k", "mixed[6].k", "d.get('a')", "(1, 2)[0]", "{'a': 1}.a", "{'a': 1}['a']", "'abc'[1]", "nil.x", "xs[none]", "ms[2].calls[0].arguments.x")

    def any(self, depth):
        if self.names and self.chance(0.25):
            return self.pick(*self.names)
        if self.loops and self.chance(0.15):
            return "loop." + self.pick("index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem", "depth", "cycle('a', 'b')", "changed(n)", "cycle(1)")
        if self.macros and self.chance(0.08):
            return self.call(depth)
        kinds = [self.string, self.integer, self.number, self.list, self.dict, self.boolean, self.access]
        return self.dice.choice(kinds)(depth) if self.chance(0.92) else self.pick(*OTHERS, "none", "-1", "''")

    def call(self, depth):
        name, parameters = self.pick(*self.macros)
        given = [self.any(depth - 1) for _ in range(self.dice.randrange(len(parameters) + 1))]
        left = parameters[len(given):]
        if left and self.chance(0.4):
            given.append(f"{self.dice.choice(left)}={self.any(depth - 1)}")
        return f"{name}({', '.join(given)})"

    # ---- statements -----------------------------------------------------------------------

    def tag(self, text):
        return "{%" + self.pick("", "", "", "-", "+") + f" {text} " + self.pick("", "", "", "-", "+") + "%}"

    def text(self):
        return self.pick("a", " b ", "\n", "\n\n", "  \n  ", "x\n", "\n  y", "\t", "{ }", "% #", "é", "", "}}")

    def body(self, depth):
        names, macros = list(self.names), list(self.macros)
        made = "".join(self.statement(depth) for _ in range(self.dice.randrange(1, 4)))
        self.names, self.macros = names, macros
        return made

    def name(self):
        return self.pick("v", "w", "x", "y", "n", "s", "xs", "d")  # some hide the context's

    def statement(self, depth):
        choice = self.dice.randrange(22)
        if depth <= 0 or choice < 8:
            shown = "{{" + self.pick("", "", "-", "+") + f" {self.any(3)} " + self.pick("", "", "-") + "}}"
            return self.text() + shown + self.text()
        made = self.choose(choice, depth)
        return self.text() + made + self.text()

    def choose(self, choice, depth):
        if choice < 11:
            parts = [self.tag(f"if {self.boolean(2)}") + self.body(depth - 1)]
            if self.chance(0.3):
                parts.append(self.tag(f"elif {self.boolean(2)}") + self.body(depth - 1))
            if self.chance(0.5):
                parts.append(self.tag("else") + self.body(depth - 1))
            return "".join(parts) + self.tag("endif")
        if choice < 14:
            return self.loop(depth)
        if choice < 17:
            name = self.name()
            made = self.tag(f"set {name} = {self.any(3)}")
            if self.chance(0.2):
                made = self.tag(f"set {name}{self.pick('', ' | upper', ' | trim | length')}") + self.body(depth - 1) + self.tag("endset")
            elif self.chance(0.15):
                made = self.tag(f"set {name}, w = {self.pick('1, 2', 'nested[0]', 'xs[:2]', '[n, s]', '(1,)')}")
            self.names.append(name)
            return made
        if choice == 17:
            return self.macro(depth)
        if choice == 18:
            return self.tag("set ns = namespace(a=1, b=s)") + self.tag(f"for i in {self.pick('xs', 'ms', 'range(3)')}") + \
                self.tag(f"set ns.a = ns.a {self.pick('+ 1', '~ loop.index', '* 2')}") + self.body(depth - 1) + self.tag("endfor") + "{{ ns.a }}"
        if choice == 19:
            return self.pick(self.tag("filter upper") + self.body(depth - 1) + self.tag("endfilter"),
                             self.tag(f"with v = {self.any(2)}, q = v") + self.body(depth - 1) + "{{ v }}" + self.tag("endwith"),
                             self.tag("generation") + self.body(depth - 1) + self.tag("endgeneration"),
                             self.tag("filter replace('a', n)|trim") + self.body(depth - 1) + self.tag("endfilter"))
        if choice == 20 and self.chance(0.4):
            change = self.pick("l.append(n)", "l.pop()", "l.insert(0, s)", "l.extend(ys)", "l.reverse()", "l.remove(2)", "m.update(a=2, q=[])", "m.update({'x': 1})", "l.pop(0)", "l.insert(-1, 5)",
                               "m.pop('a')", "m.pop('zz', 0)", "m.setdefault('k', 1)", "m.clear()", "l.clear()", "m.popitem()", "m.copy()", "l.copy()", "l.index(2)", "l.count(2)")
            return self.tag("set l = xs|list") + self.tag("set m = d.copy()") + self.tag(f"set r = {change}") + "{{ l }}{{ m }}{{ r }}"
        if choice == 20:
            return self.pick("{# note #}", "{#- note -#}", "{# a\n b #}\n", "  {# x #}\n", self.tag("raw") + "{{ n }} {% if %}" + self.tag("endraw"), "{#+ p +#}\n")
        if self.macros and self.chance(0.5):
            return self.tag(f"call {self.call(2)}") + self.body(depth - 1) + self.tag("endcall")
        return "{{ " + self.any(2) + ", " + self.any(2) + " }}"

    def loop(self, depth):
        target, names = self.pick(("i", ["i"]), ("x", ["x"]), ("a, b", ["a", "b"]))
        source = self.pick(*LISTS, "range(3)", "s", "missing", self.list(2)) if len(names) == 1 else \
            self.pick("d.items()", "dd|dictsort", "nested[:2]", "[(1, 2), 'ab']", "ed.items()", "d|items")
        condition = f" if {self.pick(self.boolean(1), f'{names[0]} is string', f'{names[0]} is not none', names[0])}" if self.chance(0.3) else ""
        before = list(self.names)
        self.names += names
        self.loops += 1
        inner = self.body(depth - 1)
        if self.chance(0.2):
            inner += self.tag("if " + self.boolean(1)) + self.tag(self.pick("break", "continue")) + self.tag("endif") + self.text()
        self.loops -= 1
        self.names = before
        otherwise = self.tag("else") + self.body(depth - 1) if self.chance(0.3) else ""
        return self.tag(f"for {target} in {source}{condition}") + inner + otherwise + self.tag("endfor")

    def macro(self, depth):
        name = self.pick("m", "m2", "helper")
        parameters = ["p", "r", "n"][:self.dice.randrange(4)]
        defaults = self.dice.randrange(len(parameters) + 1)
        signature = ", ".join(p if i < len(parameters) - defaults else f"{p}={self.any(1)}" for i, p in enumerate(parameters))
        before, loops = list(self.names), self.loops
        self.names += parameters
        self.loops = 0
        inner = self.body(depth - 1) + self.pick("", "", "{{ caller() if caller }}", "{{ varargs }}", "{{ kwargs }}")
        self.names, self.loops = before, loops
        self.macros.append((name, parameters))
        return self.tag(f"macro {name}({signature})") + inner + self.tag("endmacro")

    def template(self):
        made = "".join(self.statement(3) for _ in range(self.dice.randrange(1, 5)))
        return self.damage(made) if self.chance(0.15) else made

    def damage(self, text):
        """One place is changed: most of these are errors, and both should see it."""
        at = self.dice.randrange(len(text) + 1)
        to = at + self.dice.randrange(4)
        return text[:at] + self.pick("", "", "{%", "%}", "{{", "}}", " ", "'", "(", "]", "-", "is", ".", "|", "=", "{# ") + text[to:]


UNPRINTABLE = (" object at 0x", "<function ", "<bound method", "<built-in method", "<class ")


def comparable(source, expected, problem):
    """Is it of no use to compare? Python prints addresses of things, and has larger integers."""
    if problem is not None:
        return "Exceeds the limit" not in problem
    return not any(word in expected for word in UNPRINTABLE)


def main():
    template_oracle.ensure_jinja()
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 1500
    oracle = template_oracle.Oracle()
    sources = [Grammar(f"{seed}.{i}").template() for i in range(count)]
    replies = template_oracle.Runner(sys.argv[1]).render([(source, CONTEXT) for source in sources])
    rendered = refused = failed = 0
    for source, reply in zip(sources, replies):
        expected, problem = oracle.render(source, CONTEXT)
        if not comparable(source, expected, problem):
            continue
        if problem is None and ("64 bits" in reply.get("error", "") or reply.get("code") == "BATON_EUNSUPPORTED"):
            continue  # an integer that only Python can hold; a filter that nobody has, where nobody uses it
        difference = template_oracle.differs(expected, problem, reply)
        if difference:
            failed += 1
            if failed <= 5:
                print(difference)
                template_oracle.show(source, {}, expected, problem, reply)
        elif problem is None:
            rendered += 1
        else:
            refused += 1
    print(f"seed {seed}: {rendered} templates render alike, {refused} are refused by both, {failed} differ")
    if rendered < count // 4:
        print("too few render; the grammar is of no use")
    return 1 if failed or rendered < count // 4 else 0


if __name__ == "__main__":
    sys.exit(main())
