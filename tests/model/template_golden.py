#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes golden/template_cases.json: small templates of our own, and what jinja2 makes of them.

The C test compares with the file, so that it needs no Python. Run this after adding a case:

usage: template_golden.py [OUT]
"""
import json
import pathlib
import sys

import template_oracle

CHAT = """{#- A chat template in the style of many: tools, calls, thoughts. -#}
{%- macro show(content) -%}
    {%- if content is string -%}{{ content }}
    {%- elif content is iterable -%}
        {%- for part in content if part.type == 'text' -%}{{ part.text }}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last=messages|length - 1, seen=false) -%}
{%- for message in messages[::-1] -%}
    {%- if not ns.seen and message.role == 'user' -%}
        {%- set ns.seen = true -%}
        {%- set ns.last = (messages|length - 1) - loop.index0 -%}
    {%- endif -%}
{%- endfor -%}
{{ bos_token }}
{%- if messages[0]['role'] == 'system' or tools %}
[system]
{{ show(messages[0].content) if messages[0].role == 'system' else 'Today is ' + strftime_now('%d %b %Y') }}
{% if tools %}
{% for tool in tools %}
- {{ tool | tojson }}
{% endfor %}
{% endif %}
{%- endif %}
{% for message in messages %}
    {% if message.role == 'system' and loop.first %}
        {% continue %}
    {% elif message.role not in ['user', 'assistant', 'tool'] %}
        {{ raise_exception('Unknown role: ' ~ message.role) }}
    {% endif %}
[{{ message.role }}]
    {% if message.reasoning_content is defined and loop.index0 > ns.last %}
<think>{{ message.reasoning_content.strip() }}</think>
    {% endif %}
    {% set text = show(message.content).split('</think>')[-1].lstrip('\\n') %}
    {{- text }}
    {% for call in message.tool_calls or [] %}
        {%- set call = call.function if call.function is defined else call %}
call {{ call.name }}({% for key, value in call.arguments.items() %}{{ key }}={{ value | tojson }}{{ ', ' if not loop.last }}{% endfor %})
    {% endfor %}
{% endfor %}
{% if add_generation_prompt %}
[assistant]
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}
{% endif %}
"""
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"ä": {"type": "number"}}}}}
USER = {"role": "user", "content": "Hi"}

# name: (template, context)
CASES = {
    "chat: user": (CHAT, {"messages": [USER], "add_generation_prompt": True, "bos_token": "<s>"}),
    "chat: all": (CHAT, {"messages": [{"role": "system", "content": "Be ünique."}, USER,
                                      {"role": "assistant", "content": "<think>a</think>\n\nHo", "reasoning_content": "old"},
                                      {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "image"}, {"type": "text", "text": "two"}]},
                                      {"role": "assistant", "content": "", "reasoning_content": " new\n",
                                       "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1, "y": [None, True, 0.5, "ß\n"]}}}]},
                                      {"role": "tool", "content": "3"}], "tools": [TOOL], "bos_token": "<s>"}),
    "chat: no thinking": (CHAT, {"messages": [USER], "tools": [TOOL], "add_generation_prompt": True, "enable_thinking": False}),
    "chat: odd role": (CHAT, {"messages": [{"role": "critic", "content": "Bad."}]}),
    "chat: no messages": (CHAT, {"messages": []}),

    "white space: blocks": ("a\n  {% if true %}  \n  b\n  {% endif %}\nc\n", {}),
    "white space: minus": ("a \n {%- if true -%} \n b \n {%- endif -%} \n c", {}),
    "white space: plus": ("a\n  {%+ if true +%}\n  b\n  {%+ endif %}\nc", {}),
    "white space: variables": (" {{- 1 -}} \n {{ 2 }} \n{{+ 3 }}\n", {}),
    "white space: comments": ("a\n  {# x #}\n b {#- y -#} c\n{# z +#}\nd", {}),
    "white space: raw": ("a\n  {% raw %}\n {{ x }} {% if %} \n  {%- endraw %}\nb{% raw -%}  {# #}  {% endraw %}", {}),
    "white space: line ends": ("a\r\n{% if true %}\r\nb\r{% endif %}\r\nc\r\n\r\n", {}),
    "white space: unicode": ("a\u3000\u00a0{%- if true -%}\u2003b{% endif %}", {}),
    "white space: only a newline": ("\n", {}),

    "scope: loop": ("{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", {}),
    "scope: if": ("{% if true %}{% set x = 2 %}{% endif %}{{ x }}{% if false %}{% set y = 1 %}{% endif %}{{ y }}", {"x": 0, "y": 5}),
    "scope: read before set": ("{% for i in [1] %}[{{ x }}]{% endfor %}{% set x = 2 %}{{ x }}", {"x": 1}),
    "scope: macro sees later": ("{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% set x = 1 %}{{ m() }}{% set x = 2 %}{{ m() }}", {"x": 9}),
    "scope: namespace": ("{% set n = namespace(a=1) %}{% for i in [1, 2] %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}{{ n }}", {}),
    "scope: set block": ("{% set x %}{% set y = 1 %}<{{ y }}>{% endset %}{{ x }}{{ y }}{% set z | upper %}abc{% endset %}{{ z }}", {}),
    "scope: with": ("{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", {"a": 7}),
    "scope: generation": ("{% generation %}{% set a = 1 %}{{ a }}{% endgeneration %}{{ a }}", {}),
    "scope: unpacking": ("{% set a, b = 1, 'x' %}{{ a }}{{ b }}{% for (k, v) in [(1, 2)] %}{{ k }}{{ v }}{% endfor %}", {}),

    "loop: everything": ("{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
                         "{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }};{% endfor %}", {"xs": [5, 5, 6]}),
    "loop: filtered": ("{% for x in xs if x is odd %}{{ loop.index }}/{{ loop.length }}:{{ x }} {{ loop.last }}{% else %}none{% endfor %}", {"xs": [1, 2, 3, 4]}),
    "loop: else": ("{% for x in [] %}{{ x }}{% else %}empty{% endfor %}{% for x in nothing %}{% else %}undefined{% endfor %}", {}),
    "loop: break": ("{% for x in range(9) %}{% if x == 3 %}{% break %}{% elif x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", {}),
    "loop: dict": ("{% for k in d %}{{ k }}{% endfor %}{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{{ d.keys() }}{{ d.values() }}{{ d.items() }}", {"d": {"b": 1, "a": None}}),
    "loop: string": ("{% for c in 'aé🙂' %}{{ c }}|{% endfor %}", {}),

    "macro: arguments": ("{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m(a=4, b=5) }} {{ m() }}", {}),
    "macro: rest": ("{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}", {}),
    "macro: call": ("{% macro m(t) %}<{{ t }}>{{ caller('x') }}</{{ t }}>{% endmacro %}{% call(v) m('b') %}[{{ v }}]{% endcall %}", {}),
    "macro: recursion": ("{% macro sum(xs) %}{{ (xs[0] + sum(xs[1:])|int) if xs else 0 }}{% endmacro %}{{ sum([1, 2, 3]) }}", {}),
    "macro: too many": ("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", {}),
    "macro: star": ("{% macro m(a, b, c) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*[1, 2], **{'c': 3}) }}", {}),

    "numbers: arithmetic": ("{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ true + 1 }} {{ +1 }} {{ - -1 }}", {}),
    "numbers: printing": ("{{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e15 }} {{ 1e-5 }} {{ 0.0001 }} {{ 1e300 * 1e10 }} {{ 123456789.125 }} {{ -0.0 }} {{ 5e-324 }}", {}),
    "numbers: literals": ("{{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 1_0.5_0 }} {{ 1e3 }}", {}),
    "numbers: comparing": ("{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 in [1.0] }}", {}),
    "numbers: by zero": ("{{ 1 / 0 }}", {}),
    "precedence: ~ before +": ("{{ 1 + 2 ~ 3 }}", {}),
    "precedence": ("{{ 'a' + 2 ~ 3 * 4 }} {{ not 1 == 2 }} {{ -1|abs }} {{ 2 ** 3 ** 2 }} {{ 1 if 0 else 2 if 0 else 3 }} {{ 'a' ~ 1 + 2 if false }} {{ 1 or 2 and 3 }} {{ not a is defined }}", {}),

    "strings: escapes": (r"""{{ 'a\n\t\\\'\"\x41\u00e9\U0001f642\101\q' "b" 'c' }}""", {}),
    "strings: methods": ("{{ ' a b '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'a,b,c'.split(',', 1) }}|{{ ' a  b '.split() }}|{{ 'a-b-c'.rsplit('-', 1) }}|{{ 'aXb'.lower() }}|"
                         "{{ 'it is'.title() }}|{{ 'abc'.find('c') }}|{{ 'abcabc'.count('b') }}|{{ 'abc'.startswith(('x', 'a')) }}|{{ '-'.join(['a', 'b']) }}|{{ 'a\\nb'.splitlines() }}|"
                         "{{ 'x'.center(5, '*') }}|{{ '7'.zfill(3) }}|{{ 'a=b=c'.partition('=') }}|{{ 'abc'.replace('', '.') }}|{{ 'é'.upper() }}{{ 'ß'.upper() }}", {}),
    "strings: slices": ("{{ 'abcdef'[1:3] }} {{ 'äöü🙂'[::-1] }} {{ 'abc'[-1] }} {{ 'abcdef'[::2] }} {{ 'abc'[5:] }}|{{ [1, 2, 3][:-1] }} {{ (1, 2, 3)[::-1] }} {{ range(9)[2:7:2] }}", {}),
    "strings: quoting": ("{{ ['a', \"it's\", '\"', 'both\\'\"', '\\n', '\\x01', 'é', '\u200b', '\\\\'] }}", {}),
    "strings: percent": ("{{ '%s %r %5d|%-5s|%05.1f %x %%' % ('a', 'b', 3, 'c', 2.55, 255) }} {{ '%(k)s' % {'k': 1} }} {{ '%s' % none }}", {}),
    "strings: format": ("{{ '{} {}'.format(1, 'b') }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x.y[0]}'.format(x={'y': [5]}) }} {{ '{:>5}|{:<4}|{:^5}|{:05d}|{:.2f}|{:,}'.format('a', 'b', 'c', 42, 3.14159, 1234567) }} {{ '{{}}'.format() }}", {}),
    "strings: markup": ("{{ '<b>'|safe + '<i>' }} {{ ('<'|e) ~ '<' }} {{ '<'|e|e }} {{ ('%s'|safe) % '<' }} {{ ['<'|safe] }} {{ '<a>'|safe|upper }}", {}),
    "strings: concatenation grows": ("{% set n = namespace(t='', u='') %}{% for i in range(30) %}{% set n.u = n.t %}{% set n.t = n.t + i|string + ',' %}{% set n.u = n.u + 'x' %}{% endfor %}{{ n.t }}{{ n.u }}", {}),

    "json: defaults": ("{{ x|tojson }}", {"x": {"b": [1, 2.0, None, True], "a": "é\"\\\n\x07\u007f/", "e": [], "o": {}}}),
    "json: options": ("{{ x|tojson(indent=2) }}|{{ x|tojson(ensure_ascii=true) }}|{{ x|tojson(separators=(',', ':')) }}|{{ x|tojson(sort_keys=true) }}|{{ x|tojson(indent='--') }}|{{ x|tojson(indent=0) }}",
                      {"x": {"b": [1, {"ü": "🙂"}], "a": {}}}),
    "json: keys": ("{{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}", {}),
    "json: undefined": ("{{ {'a': nothing}|tojson }}", {}),

    "filters: lists": ("{{ [3, 1, 2]|sort }} {{ ['b', 'A']|sort }} {{ [1, 2, 1]|unique|list }} {{ [1, 2]|sum }} {{ ['a', 'B']|max }} {{ [1, 2, 3]|batch(2)|list }} {{ [1, 2, 3]|slice(2)|list }} {{ [1, 2]|reverse|list }}"
                       " {{ [1, 2]|first }}{{ [1, 2]|last }} {{ 'abc'|list }} {{ {'b': 1, 'A': 2}|dictsort }} {{ {'a': 1}|items|list }} {{ [1, 'a']|join('-') }}", {}),
    "filters: select": ("{{ ms|map(attribute='r')|list }} {{ ms|selectattr('r', 'equalto', 'u')|list|length }} {{ ms|rejectattr('n')|map(attribute='r')|join }} {{ [0, 1, 2]|select|list }} {{ [1, 2, 3]|reject('odd')|list }}"
                        " {{ ['a']|map('upper')|list }} {{ ms|map(attribute='q.0', default='-')|list }} {{ ms|sort(attribute='n,r')|map(attribute='r')|join }} {{ 'yes' if ms|selectattr('zz') }}",
                        {"ms": [{"r": "u", "n": 1}, {"r": "s", "n": 0}, {"r": "u", "n": 0}]}),
    "filters: text": ("{{ 'a b'|title }} {{ \"it's a-b (c\"|title }} {{ 'aBC'|capitalize }} {{ ' x '|trim }}|{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2, true) }}|{{ 'x'|center(5) }}|{{ 'hello world foo'|truncate(9) }}"
                      "|{{ 'aaa'|replace('a', 'b', 2) }}|{{ none|string }}|{{ 'a b c'|wordcount }}|{{ '%s-%s'|format(1, 2) }}", {}),
    "filters: numbers": ("{{ '42'|int }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ '0x1f'|int(base=16) }} {{ '3.9'|int }} {{ 3.9|int }} {{ '2.5'|float }} {{ 2.567|round(2) }} {{ 2.5|round }} {{ 3.5|round }} {{ 2.1|round(0, 'ceil') }} {{ -3|abs }}", {}),
    "filters: default": ("{{ a|default('x') }} {{ ''|d('y') }} {{ ''|default('z', true) }} {{ none|d('n') }} {{ m.a|default(1) }}", {"m": {}}),
    "filters: blocks": ("{% filter upper|replace('A', '4') %}banana {{ x }}{% endfilter %}", {"x": "a"}),

    "tests": ("{{ 1 is number }}{{ true is number }}{{ true is integer }}{{ 1 is integer }}{{ 1.0 is float }}{{ 'a' is string }}{{ [] is sequence }}{{ {} is mapping }}{{ 'a' is iterable }}{{ 1 is iterable }}"
              "{{ none is none }}{{ x is defined }}{{ x is undefined }}{{ 3 is odd }}{{ 4 is divisibleby 2 }}{{ 1 is in [1] }}{{ 'A' is upper }}{{ false is false }}{{ 1 is eq 1 }}{{ 1 is not ne 1 }}{{ range is callable }}{{ 1 is sameas 1 }}", {}),
    "access": ("{{ d.a }}{{ d['a'] }}{{ d.get('z', 0) }}{{ d.z }}{{ d.b.c.1 }}{{ l[0] }}{{ l.1 }}{{ l[9] }}{{ l[-1] }}{{ d.items is mapping }}{{ d['items'] }}{{ none.x }}", {"d": {"a": 1, "b": {"c": [1, 2]}, "items": 5}, "l": [7, 8]}),
    "undefined: attribute": ("{{ a.b.c }}", {"a": {}}),
    "undefined: adding": ("{{ a + 'x' }}", {}),
    "undefined: fine": ("[{{ a }}]{% if a %}{% endif %}{{ a == b }}{{ a|length }}{{ a ~ 'x' }}{{ 'x' in a }}{{ a|list }}{{ a|upper }}", {}),
    "raise": ("{% if x %}{{ raise_exception('Only ' ~ x ~ ' of them, <please>!') }}{% endif %}", {"x": 3}),
    "functions": ("{{ range(3)|list }}{{ range(5, 0, -2)|list }}{{ dict(a=1, b=[2]) }}{{ dict([('k', 'v')]) }}{{ strftime_now('%Y-%m-%d %H:%M') }}{{ range(2) }}", {}),
    "changes": ("{% set l = [1] %}{% set _ = l.append(2) %}{% set d = {'a': 1} %}{% set _ = d.update({'b': 2}) %}{{ l }}{{ d }}{{ l.pop() }}{{ d.pop('a') }}{{ l }}{{ d }}", {}),
    "from_json": ("{{ '{\"a\": [1, 2.5, null]}'|from_json }}", {}),
    "given: tools": ("{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ messages }}", {}),
    "many keys": ("{{ d.k7 }}{{ d|length }}{{ d.k19 }}{{ d.k99 }}{% for k in d %}{{ loop.index }}{% endfor %}", {"d": {f"k{i}": i for i in range(40)}}),
    "braces": ("{{ {'a': {'b': {}}} }}{{ '}}' }}{{ {}}}", {}),
    "syntax: unknown tag": ("{% foo %}", {}),
    "syntax: no end": ("{% if x %}", {}),
    "syntax: bad expression": ("{{ 1 + }}", {}),
    "syntax: bracket": ("{{ (1] }}", {}),
}


def main():
    template_oracle.ensure_jinja()
    out = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "golden" / "template_cases.json"
    oracle = template_oracle.Oracle()
    cases = []
    for name, (template, context) in CASES.items():
        text, problem = oracle.render(template, context)
        case = {"name": name, "template": template, "context": context}
        if problem is None:
            case["text"] = text
        else:  # only the message of raise_exception is the same everywhere
            case["error"] = problem[15:] if problem.startswith("TemplateError: ") else ""
        cases.append(case)
    pathlib.Path(out).write_text("[\n" + ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases) + "\n]\n")
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
