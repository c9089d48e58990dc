#!/usr/bin/env python3
"""Writes tests/golden/text/jinja_cases.jsonl: templates of ours with what Jinja2 makes of them.

usage: gen_jinja_cases.py [--corpus]      (run in the repository's root; needs jinja2 3.1)

With --corpus also the seeds of tests/fuzz/fuzz_template.c.
"""
import json
import os
import random
import sys

import diff_jinja
import jinja_oracle

CHAT = {
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi é 日本"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello", "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5], "b": "ü"}}}]},
        {"role": "user", "content": [{"type": "text", "text": "part"}, {"type": "image"}]},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"items": {"type": "array"}}}}}],
    "add_generation_prompt": True,
}
VALUES = {
    "s": "Hello, World", "i": 7, "f": 2.5, "n": None, "b": True, "l": [3, 1, 2], "d": {"b": 1, "a": "two", "items": [1]},
    "lo": [{"n": "x", "v": 2}, {"n": "Y", "v": 1}, {"n": "z", "v": 2, "on": True}], "big": 12345678901234567890123, "e": [],
}

# Groups of templates that share their variables.
GROUPS = [
    ({}, """
{{ 1 + 2 * 3 - 4 // 3 % 2 }}|{{ 7 / 2 }}|{{ 2 ** 3 ** 2 }}|{{ -2 ** 2 }}|{{ 5 // -2 }}|{{ -5 % 3 }}|{{ 5.5 % -2 }}|{{ 1e3 }}
{{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e15 }} {{ 123456789012345680.0 }} {{ 1.5e-5 }} {{ 0.0001 }} {{ -0.0 }} {{ 1e400 }} {{ 5e-324 }}
{{ 1 / 3 }} {{ 2 / 3 }} {{ 1e22 }} {{ 1e21 + 1 }} {{ 4.35 * 100 }} {{ 100000000000000000000.0 }}
{{ 'a' ~ 1 ~ none ~ [1, 'x'] }} {{ 'ab' * 3 }} {{ [0] * 2 + [1] }} {{ 'x' + 'y' ~ 'z' }} {{ 1 + 2 ~ 3 }}
{{ "it's" }} {{ ['it\\'s', 'say "x"', 'both \\' "', '\\n\\t\\x00\\x7f\\u00a0é\\u200b'] }} {{ '\\q\\101\\u00e9\\U0001F600' }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 1 == 1.0 == true }} {{ 'a' < 'B' }} {{ [1, 2] < [1, 3] }} {{ (1,) == (1,) }} {{ {'a': 1} == {'a': 1.0} }}
{{ not 1 in [2] }} {{ 1 not in [2] }} {{ 'ell' in 'hello' }} {{ '' in '' }} {{ 'k' in {'k': 1} }} {{ 3 in range(5) }}
{{ none or 0 or '' or [] or {} or 'last' }} {{ 1 and 'two' and [] }} {{ not none }} {{ 1 if false }}| {{ 'y' if 1 else 'n' if 0 else 'm' }}
{{ (1 if false) is undefined }} {{ missing is defined }} {{ missing }}| {{ missing or 'd' }} {{ missing == missing }}
{{ missing.x }}
{{ missing + 1 }}
{{ none.x }}|{{ none.x.y }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ 1 < 'a' }}
{{ 1 in 5 }}
{{ 1 / 0 }}
{{ 5 % 0 }}
{{ [1, 2, 3][1:] }} {{ 'hello'[::-1] }} {{ 'hello'[-3:-1] }} {{ (1, 2, 3)[::2] }} {{ range(10)[2:8:3] | list }} {{ 'é日本'[1] }} {{ [1][5] }}|
{{ [1, 2][::0] }}
{{ {1: 'a', true: 'b', 1.0: 'c', none: 'd', (1, 2): 'e'} }} {{ {'a': 1, 'a': 2} }}
{{ {[]: 1}['x'] if false else 'fine' }}
{{ range(3) }} {{ range(1, 9, 3) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }}
{{ range(100001) }}
{{ dict(a=1, b=2) }} {{ dict([('x', 1)], y=2) }} {{ dict({'a': 1}, a=3) }}
{{ dict(1) }}
{{ namespace(a=1).a }}{{ namespace({'b': 2}).b }}|{{ namespace().c }}|{{ namespace().c.d }}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{% set j = joiner('-') %}{{ j() }}1{{ j() }}2{{ j() }}3
{{ raise_exception('stop here') }}
{{ raise_exception(17) }}
{{ strftime_now('%d %B %Y, %H:%M:%S %j %a %-d|%e %y %p %I %% %Z%z') }}
{{ nofilter | nofilter }}
{{ 1 is notest }}
{% if false %}{{ 1 | nofilter }}{{ 1 is notest }}{% endif %}fine
{% if true %}{{ 1 | nofilter }}{% endif %}
{{ 'x' | nofilter if false else 'fine' }}
{{ [1] | map('nofilter') | list }}
{{ [1] | select('notest') | list }}
{{ lipsum is defined }}{{ zip is defined }}{{ str is defined }}
{{ ''.__class__ }}|{{ [].append }}|{{ {}.update is defined }}
{{ [].append(1) }}
{{ {}.pop('x') }}
{{ ''.__class__.__mro__ }}
{{ {'items': [1]}.items is callable }} {{ {'items': [1]}['items'] }} {{ {'get': 1}.get('get') }}
{{ 'x'.nope() }}
{{ 5() }}
"""),
    (VALUES, """
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ 'they\\'re' | title }} {{ 'they\\'re'.title() }} {{ 'aB cD' | capitalize }} {{ 'ß ŉ ǆ İ ΟΔΟΣ' | upper }} {{ 'ΟΔΟΣ ΑΣ.' | lower }} {{ 'straße'.casefold() }}
{{ '  x '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ '  x '.lstrip() }}|{{ '  x '.rstrip() }}|{{ '\\u3000x\\x1f\\u2028' | trim }}|{{ '..x.' | trim('.') }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(none, 1) }} {{ 'a b c'.rsplit(' ', 1) }} {{ 'abc'.split('b', 0) }} {{ ''.split() }} {{ ''.split(',') }} {{ ' a b '.rsplit(none, 1) }}
{{ 'abc'.split('') }}
{{ 'a\\nb\\r\\nc\\x0bd\\u2028e\\n'.splitlines() }} {{ 'a\\nb'.splitlines(true) }}
{{ s.startswith('He') }} {{ s.endswith(('x', 'ld')) }} {{ s.startswith('W', 7) }} {{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('zz') }} {{ s.index('W') }} {{ s.count('l') }} {{ 'é日é'.find('é', 1) }}
{{ s.index('zz') }}
{{ 'a-b-c'.replace('-', '+') }} {{ 'a-b-c'.replace('-', '', 1) }} {{ 'ab'.replace('', '.') }} {{ 'aXbX' | replace('X', 'y', 1) }}
{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('z') }} {{ 'abc'.rpartition('z') }}
{{ ', '.join(['a', 'b']) }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'x'.ljust(3, '.') }} {{ 'x'.rjust(3) }}|{{ 'ab'.center(5, '*') }}{{ 'abc'.center(6, '*') }} {{ 'a\\tb'.expandtabs(4) }} {{ 'aBc'.swapcase() }}
{{ ', '.join([1]) }}
{{ '12'.isdigit() }}{{ '²'.isdigit() }}{{ '½'.isnumeric() }}{{ 'ab1'.isalnum() }}{{ ''.isalpha() }}{{ ' '.isspace() }}{{ 'Ab'.istitle() }}{{ 'AB'.isupper() }}{{ '1a'.islower() }}{{ 'é'.isascii() }}
{{ 'prefix.x'.removeprefix('prefix') }} {{ 'x.suffix'.removesuffix('.suffix') }} {{ 'x'.removeprefix('yy') }}
{{ '%s|%r|%5d|%-5d|%05d|%+d|%x|%X|%o|%.2f|%e|%g|%c|%%|%s' | format('a', 'b', 1, 2, 3, 4, 255, 255, 8, 3.14159, 12345.678, 0.00001, 'z', none) }}
{{ '%(a)s-%(b)03d' % {'a': 1, 'b': 7} }} {{ '%s' % 'x' }} {{ '%s %s' % (1, [2]) }} {{ '%*d|%.*f' % (5, 42, 2, 3.14159) }} {{ '%5s|%-5s|%.2s' % ('ab', 'cd', 'efg') }}
{{ '%d' % 'x' }}
{{ '%s %s' % ('a',) }}
{{ '%s' % ('a', 'b') }}
{{ '{} {} {0}'.format(1) if false else '{0} {1} {0}'.format('a', 'b') }} {{ '{a} {b[0]} {c.n!r}'.format(a=1, b=[2], c=lo[0]) }} {{ '{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd') }}
{{ '{:05d} {:+} {:,} {:_} {:x} {:#x} {:b} {:o} {:c}'.format(42, 7, 1234567, 1234567, 255, 255, 5, 8, 65) }} {{ '{:.3f} {:8.2f}|{:<8.1f}|{:e} {:g} {:%} {:.3} {}'.format(3.14159, 2.5, 2.5, 12345.6, 1e-7, 0.25, 3.14159, 1e16) }}
{{ '{:{w}.{p}f}'.format(3.14159, w=8, p=2) }} {{ '{{}}'.format() }} {{ '{!r:>6}'.format('a') }} {{ '{:08,.1f}'.format(1234.5) }} {{ '{:d}'.format(true) }} {{ '{}'.format(none) }}
{{ '{} {}'.format(1) }}
{{ '{x}'.format(y=1) }}
{{ '{:d}'.format('a') }}
{{ '{'.format() }}
{{ d.a }} {{ d['b'] }} {{ d.zz }}| {{ d.get('zz') }} {{ d.get('zz', 9) }} {{ d.items() | list }} {{ d.keys() | list }} {{ d.values() | list }} {{ d | length }} {{ d | list }} {{ d.keys() }}
{{ d.zz.y }}
{{ d['zz']['y'] }}
{{ l[9].x }}
{{ l.index(1) }} {{ l.count(3) }} {{ l | first }} {{ l | last }} {{ [] | first }}| {{ l | sort }} {{ l | sort(reverse=true) }} {{ l | sum }} {{ l | min }} {{ l | max }} {{ [] | min }}|
{{ lo | map(attribute='n') | list }} {{ lo | map(attribute='zz', default='-') | join }} {{ lo | map('length') | list }} {{ lo | selectattr('on') | map(attribute='n') | list }} {{ lo | rejectattr('on', 'defined') | list | length }} {{ lo | selectattr('v', 'eq', 2) | map(attribute='n') | join(',') }}
{{ lo | sort(attribute='v') | map(attribute='n') | list }} {{ lo | sort(attribute='v,n') | map(attribute='n') | list }} {{ lo | sum(attribute='v') }} {{ lo | groupby('v') | map('first') | list }} {{ lo | groupby('v') | map(attribute='list') | map('length') | list }} {{ lo | max(attribute='v') }} {{ lo | join('/', attribute='n') }}
{{ ['b', 'A', 'a'] | sort }} {{ ['b', 'A', 'a'] | sort(case_sensitive=true) }} {{ ['b', 'B', 'a'] | unique | list }} {{ ['b', 'A'] | min }} {{ [1, 'a'] | sort }}
{{ [1, 2, 3, 4, 5] | batch(2, 'x') | list }} {{ [1, 2, 3, 4, 5] | slice(2) | list }} {{ [1, 2, 3] | reverse | list }} {{ 'abc' | reverse }} {{ [1, 2, 3] | select('odd') | list }} {{ [0, 1, '', 'x'] | select | list }} {{ [0, 1] | reject | list }} {{ d | dictsort }} {{ d | items | list }}
{% set g = [1, 2] | map('string') %}{{ g is iterable }}{{ g is sequence }}{{ g | list }}{{ g | list }}{{ g | string == '' }}
{{ [1] | map('string') | length }}
{{ [1] | map('string') | tojson }}
{{ n | length }}
{{ 5 | list }}
{{ n | list }}
{{ n | join }}
{{ n | map('upper') | list }} {{ 0 | select | list }} {{ missing | list }} {{ missing | length }} {{ missing | upper }}| {{ missing | default('d') }} {{ n | default('d') }} {{ n | default('d', true) }} {{ missing | join }}|
{{ missing | int }}
{{ '42' | int }} {{ ' 42 ' | int }} {{ '4.7' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ 'ff' | int(base=16) }} {{ '0x1f' | int(base=16) }} {{ 4.7 | int }} {{ '1_0' | int }} {{ '1e3' | float }} {{ 'x' | float }} {{ 'inf' | float }} {{ true | int }} {{ none | int }}
{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 1234.567 | round(-2) }} {{ 2.1 | round(method='ceil') }} {{ 2.9 | round(0, 'floor') }} {{ 7 | round }} {{ 15 | round(-1) }} {{ 25 | round(-1) }} {{ -3 | abs }} {{ -2.5 | abs }}
{{ 'x' | round(1, 'up') }}
{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent('> ', blank=true) }}|{{ 'a\\n' | indent(1) }}|
{{ 'one two three four' | truncate(10) }} {{ 'one two three four' | truncate(10, true) }} {{ 'one two three' | truncate(9, false, '~', 0) }} {{ 'a b  c' | wordcount }} {{ 'mid' | center(9) }}| {{ 'aaa bbb ccc' | wordwrap(7) }} {{ 12345678 | filesizeformat }} {{ 2048 | filesizeformat(true) }} {{ '<a>x</a>  y' | striptags }} {{ 'a b/ü' | urlencode }}
{{ '<b>' | e }} {{ '<b>' | safe }} {{ ('<b>' | e) ~ '<' }} {{ ('<' | e) + '<' }} {{ '<' + ('x' | safe) }} {{ ('<' | safe) | upper is escaped }} {{ ('%s' | safe) % '<' }} {{ ('<' | safe).join(['<', 'x']) }} {{ ['<' | safe] }} {{ ('a<' | safe).replace('a', '>') }} {{ '&' | forceescape }} {{ (5 | safe) is string }}
{{ s | tojson }} {{ d | tojson }} {{ [1, 2.0, true, none, 'é"\\\\/\\n\\u2028\\x00'] | tojson }} {{ big | tojson }} {{ big }} {{ 1e16 | tojson }} {{ (1, 2) | tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }}
{{ d | tojson(indent=2) }}{{ [] | tojson(indent=2) }}{{ {'a': []} | tojson(indent='--') }}{{ d | tojson(sort_keys=true) }}{{ d | tojson(separators=(',', ':')) }}{{ 'é😀' | tojson(ensure_ascii=true) }}{{ d | tojson(indent=0) }}
{{ missing | tojson }}
{{ {(1, 2): 3} | tojson }}
{{ {'a': 1, 2: 3} | tojson(sort_keys=true) }}
{{ i is odd }}{{ i is even }}{{ i is divisibleby 7 }}{{ i is number }}{{ b is number }}{{ b is integer }}{{ f is float }}{{ s is string }}{{ l is sequence }}{{ s is sequence }}{{ d is mapping }}{{ l is mapping }}{{ d is iterable }}{{ i is iterable }}{{ n is none }}{{ missing is none }}{{ missing is sequence }}{{ missing is iterable }}{{ missing is callable }}
{{ i is eq 7 }}{{ i is ne(7) }}{{ i is gt 3 }}{{ i is in [7] }}{{ 'a' is lower }}{{ 'A' is upper }}{{ b is true }}{{ b is false }}{{ 1 is true }}{{ b is boolean }}{{ n is sameas none }}{{ 'upper' is filter }}{{ 'odd' is test }}{{ range is callable }}{{ s.upper is callable }}{{ big is integer }}{{ i is not string }}
{{ 1 is is 2 }}
{{ i.real }}{{ i.bit_length() }}{{ f.is_integer() }}{{ 2.0.is_integer() }}|{{ s.nope }}|{{ i.nope }}
"""),
    (VALUES, """
{% for x in l %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ ',' if not loop.last }}{% endfor %}
{% for x in l %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.depth }}{{ loop.previtem }}<{{ loop.nextitem }}|{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }};{% endfor %}
{% for x in e %}x{% else %}empty{% endfor %}{% for x in l if x > 9 %}x{% else %}none{% endfor %}{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{{ loop.last }}{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}{% for x in l %}{% break %}{% else %}else{% endfor %}{% for x in l %}{% continue %}{% else %}else{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for c in 'é日' %}[{{ c }}]{% endfor %}{% for k in d %}{{ k }}{% endfor %}
{% for a, b in [[1, 2, 3]] %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for x in n %}{% endfor %}
{% for x in i %}{% endfor %}
{% for x in l | map('string') %}{{ loop.length }}{{ x }}{{ loop.last }}{% endfor %}
{% for x in [[1, [2]], 3] recursive %}{{ loop.depth }}{% if x is number %}{{ x }}{% else %}({{ loop(x) }}){% endif %}{% endfor %}
{% for x in l %}{{ loop(x) }}{% endfor %}
{% for x in l %}{% set outer = loop %}{% for y in 'ab' %}{{ outer.index }}{{ loop.index }}{{ y }} {% endfor %}{% endfor %}
{% set x = 1 %}{% for y in l %}{% set x = x + y %}{{ x }} {% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}
{% for y in l %}{{ x }}{% set x = y %}{{ x }}{% endfor %}{{ x is defined }}
{% if i %}{% set q = 1 %}{% else %}{% set q = 2 %}{% endif %}{{ q }}{% if not i %}{% set w = 1 %}{% endif %}[{{ w }}]
{% set ns = namespace(n=0) %}{% for x in l %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}{% set ns.t %}block {{ ns.n }}{% endset %}{{ ns.t }}
{% set i.x = 1 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d2) = [3, 4] %}{{ c }}{{ d2 }}{% set t = 1, %}{{ t }}
{% set a, b = 1 %}
{% set x | upper | trim %} abc {{ i }} {% endset %}[{{ x }}]{% set y %}{% for z in l %}{{ z }}{% endfor %}{% endset %}{{ y | length }}
{% macro m(a, b=a ~ '!', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m(*[5, 6]) }}{{ m(**{'a': 7}) }}{{ m() }}|
{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=1) }}
{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}{% macro g() %}{{ later }}{% endmacro %}{% set later = 5 %}{{ g() }}
{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}
{% macro box(t) %}<{{ t }}:{{ caller('x') }}>{% endmacro %}{% call(v) box('a') %}{{ v }}{{ i }}{% endcall %}{% macro opt() %}{{ caller is defined }}{% endmacro %}{{ opt() }}
{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}
{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}{% with a = 1, b = i %}{{ a }}{{ b }}{% set c = 2 %}{% endwith %}[{{ c }}{{ a }}]
{% filter upper %}abc {{ s }}{% endfilter %}{% filter replace('a', 'b') | trim %} aaa {% endfilter %}
{% block t %}x{{ i }}{% endblock %}{% set z = 3 %}{% block u %}{{ z }}{% endblock u %}{{ self.zz is defined }}
{% autoescape true %}{{ '<' }}{{ '<' | safe }}{{ '<' ~ 'b' }}{% endautoescape %}{{ '<' }}
{% include 'x' %}
{% print s %}{% print 1, 2 %}
ab{% generation %}cé{{ i }}{% endgeneration %}日{% generation %}{% endgeneration %}{% macro m() %}q{% generation %}in{% endgeneration %}{% endmacro %}{{ m() }}{% generation %}a{% generation %}b{% endgeneration %}c{% endgeneration %}
{% for x in l %}{% generation %}{% set v = x %}{{ v }}{{ loop.index }}{% endgeneration %}[{{ v }}]{% endfor %}
{% for x in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}
{% break %}
{% macro m() %}{% continue %}{% endmacro %}
{% for loop in l %}{% endfor %}
{% for x in l %}{% set x %}{% if x == 1 %}{% break %}{% endif %}t{% endset %}{{ x }}{% endfor %}
"""),
    ({}, """
{% for i in [1,2] %}{% block b scoped %}{{ i }}{% endblock %}{% endfor %}
{% for i in [1,2] %}{% block b %}[{{ i }}]{% endblock %}{% endfor %}
{% for i in [1,2] %}{% block b scoped %}{{ loop.index }}{% endblock %}{% endfor %}
{% set x = 5 %}{% block b %}{{ x }}{% endblock %}
{% block b required %}{% endblock %}
{% block b required %}x{% endblock %}
{% block b scoped required %}{% endblock %}
{% block b required scoped %} {% endblock %}
{% block a %}A{% endblock %}{{ self.a() }}
{{ self.b() }}
{{ self }}
{% block a %}{{ super() }}{% endblock %}
{% block a %}{{ super }}{% endblock %}
{{ super() }}
{% block a %}{{ super.super() }}{% endblock %}
{% block a %}{% block b %}B{% endblock %}{% endblock %}{{ self.b() }}{{ self.a() }}
{% block a %}x{% endblock a %}
{% block a %}x{% endblock b %}
{% block a %}{% endblock %}{% block a %}{% endblock %}
{% block a-b %}{% endblock %}
{% block %}{% endblock %}
{% block a foo %}{% endblock %}
{% set a = self %}{{ a }}
{% macro m() %}{% block z %}Z{% endblock %}{% endmacro %}{{ m() }}
{% for i in [1] %}{% set q = 3 %}{% block b scoped %}{{ q }}{{ i }}{% set q = 4 %}{{ q }}{% endblock %}{{ q }}{% endfor %}
{{ 'a b  c d e f'|wordwrap(3) }}|
{{ '  a b c'|wordwrap(3) }}|
{{ '   leading blanks here and more words'|wordwrap(10) }}|
{{ '     x'|wordwrap(3) }}|
{{ 'a\\n\\n  b c d'|wordwrap(3) }}|
{{ 'averyverylongword and then'|wordwrap(5) }}|
{{ 'averyverylongword and then'|wordwrap(5, false) }}|
{{ 'hy-phen-ated words-here now'|wordwrap(6) }}|
{{ 'hy-phen-ated words-here now'|wordwrap(6, break_on_hyphens=false) }}|
{{ 'a b c'|wordwrap(3, wrapstring='|') }}
{{ '\\ta\\tb'|wordwrap(3) }}
{{ 'aa   bb'|wordwrap(4) }}|
{{ ''|wordwrap(4) }}|
{{ '   '|wordwrap(2) }}|
{{ 'é日本 語語語語'|wordwrap(2) }}|
{{ 'x'|wordwrap(0) }}
{{ {'b':1,'a':2}|pprint }}
{{ [1,2,3]|pprint }}
{{ {'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb':1,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa':2}|pprint }}
{{ range(40)|list|pprint }}
{{ (['some text']*12)|pprint }}
{{ {'a': ['some text']*12, 'b': {'z': 1, 'y': ['q'*30]*4}}|pprint }}
{{ ('word '*40)|pprint }}
{{ {'k': 'word '*40}|pprint }}
{{ ['line\\nline\\n'*10]|pprint }}
{{ {1:2,'a':3,none:4}|pprint }}
{{ (1,)|pprint }}{{ ()|pprint }}{{ ('x'*50, 'y'*50)|pprint }}
{{ 'abc'|pprint }}{{ 1.5|pprint }}{{ none|pprint }}{{ true|pprint }}
{{ {'a': {'b': {'c': {'d': 'x'*60}}}}|pprint }}
{{ missing|pprint }}
{{ ("it's"*30)|pprint }}
{{ [('a'*30, 1), {'k'*30: 'v'*30}]|pprint }}
{{ '{a} {b}'.format_map({'a':1,'b':2}) }}
{{ '{a}'.format_map({}) }}
{{ '{a.b}'.format_map({'a':{'b':2}}) }}
{{ '{a[b]}'.format_map({'a':{'b':2}}) }}
{{ '{0}'.format_map({'a':1}) }}
{{ '{a!r:>5}'.format_map({'a':'x'}) }}
{{ '{}'.format_map([1]) }}
{{ '{a}'.format_map() }}
{{ '{a}'.format_map(1) }}
{{ '{a.__class__}'.format_map({'a':1}) }}
{{ 'abc'.translate({97: 'X', 98: none, 99: 100}) }}
{{ 'abc'.translate({'a': 'b'}) }}
{{ 'abc'.translate('xyz') }}
{{ 'abc'.translate([]) }}
{{ 'abc'.translate(5) }}
{{ 'abc'.translate() }}
{{ 'abc'.translate({97: 1.5}) }}
{{ 'abc'.translate({97: 1114112}) }}
{{ 'abc'.translate({97: -1}) }}
{{ 'abc'.maketrans('ab', 'xy') }}
{{ 'abc'.maketrans('ab', 'xy', 'c') }}
{{ 'abc'.maketrans({'a': 'b', 98: none}) }}
{{ 'abc'.maketrans({'ab': 'b'}) }}
{{ 'abc'.maketrans('ab', 'x') }}
{{ 'abc'.maketrans(1) }}
{{ 'abc'.maketrans() }}
{{ 'abc'.maketrans({1.5: 'b'}) }}
{{ 'abc'.translate('abc'.maketrans('ab', 'xy', 'c')) }}
{{ 'abc'.isidentifier() }}{{ '1a'.isidentifier() }}{{ ''.isidentifier() }}{{ 'é'.isidentifier() }}{{ 'a b'.isidentifier() }}{{ '_'.isidentifier() }}{{ 'a·'.isidentifier() }}{{ '℘'.isidentifier() }}{{ 'for'.isidentifier() }}{{ 'ªº'.isidentifier() }}{{ '²'.isidentifier() }}
{{ 1.5.hex() }} {{ 0.0.hex() }} {{ (-0.1).hex() }} {{ 1e308.hex() }} {{ 5e-324.hex() }} {{ 1e-310.hex() }}
{{ 2.5.as_integer_ratio() }} {{ 7.as_integer_ratio() }} {{ (0.1).as_integer_ratio() }} {{ (-0.0).as_integer_ratio() }} {{ true.as_integer_ratio() }}
{{ 1e300.as_integer_ratio() }}
{{ 1e-300.as_integer_ratio() }}
{{ 5e-324.as_integer_ratio() }}
{{ 1.5.is_integer() }}{{ 2.0.is_integer() }}{{ 3.is_integer() }}
{{ 5.bit_length() }}{{ 5.bit_count() }}{{ 5.conjugate() }}{{ 5.real }}{{ 5.imag }}{{ 5.numerator }}{{ 5.denominator }}{{ 1.5.real }}{{ 1.5.imag }}
{{ dict.fromkeys(['a','b']) }}
{{ dict.fromkeys(['a','b'], 1) }}
{{ {}.fromkeys(['a','b'], 1) }}
{{ {}.fromkeys('ab') }}
{{ {}.fromkeys(5) }}
{{ {}.fromkeys() }}
{{ {}.fromkeys([[]]) }}
{{ range.x }}
{{ ''.__class__ }}
{{ ''.__class__() }}
{{ ''.__class__.__mro__ }}
{{ ''.__len__() }}
{{ 'a'.__add__('b') }}
{{ [].__class__() }}
{{ 5.__add__(1) }}
{{ {}.__getitem__('a') }}
{{ {}['__class__'] }}
{{ ''['__class__'] }}
{{ missing.__class__ }}
{{ missing.__call__() }}
{{ none.__class__() }}
{{ [].append(1) }}
{{ {}.update(a=1) }}
{{ [].sort() }}
{{ range.__class__ }}
{{ range.__call__(3) }}
{{ cycler.__init__ }}
{{ cycler.__init__.__globals__ }}
{{ joiner.__init__.__globals__ }}
{{ self.__class__ }}
{{ self.__init__() }}
{{ self._TemplateReference__context }}
{% for i in [1] %}{{ loop.__class__ }}{{ loop._iterable }}{% endfor %}
{% for i in [1] %}{{ loop.__class__() }}{% endfor %}
{% macro m() %}{% endmacro %}{{ m.__class__ }}
{% macro m() %}{% endmacro %}{{ m.__call__() }}
{% macro m() %}{% endmacro %}{{ m._func }}
{{ namespace().__class__ }}
{{ 'abc'.format.__self__ }}
{{ ''|attr('__class__') }}
{{ (''|attr('__class__'))() }}
{{ '{0.__class__}'.format('') }}
{{ '{0.__class__.__mro__}'.format('') }}
{{ '%s'.__mod__('x') }}
{{ (1,2).__class__.__bases__ }}
{{ lipsum.__globals__ }}
{{ ''.join.__call__ }}
{{ (1).__class__() }}
{{ [1,2].index(3) }}{{ [1].count(1) }}
{{ (3).__index__() }}
{% for i in [1, 2] %}{% block b scoped %}{% block c %}{{ i }}{% endblock %}{{ self.c() }}{% endblock %}{% endfor %}{{ self.b() }}
{% macro m(x) %}{% block b scoped %}{{ x }}{% endblock %}{% endmacro %}{{ m(4) }}
{% with y = 2 %}{% block b scoped %}{{ y }}{% endblock %}{% block c %}{{ y }}{% endblock %}{% endwith %}
{% for i in [1] %}{% block b scoped %}{% for i in [2] %}{{ i }}{% endfor %}{{ i }}{% endblock %}{% endfor %}
"""),
]

# One template each: where line breaks matter, or errors of syntax.
SINGLE = [
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc\n", "a {{- 1 -}} b", "a\n  {{ 1 }}\n",
    "  {%+ if true %}x{% endif %}", "{% if true +%}\nx{% endif %}", "x{% if true %}  \ny{% endif %}", "{# c #}\n{# d -#}\n x", "  {# c #}\nx\n\n",
    "{% raw %}\n{{ x }}{% if %}{% endraw %}\nz", "{%- raw -%}  {{ x }}  {%- endraw -%}  z", "a\r\nb\rc\n{% if true %}\r\nd{% endif %}", "\n\n", " {{ '{{' }} }} %} #}",
    "{{ '%}' }}{{ \"}}\" }}", "{%if true%}{{1}}{%endif%}", "{% for x in [1,2] -%}\n {{ x }}\n{%- endfor %}\n!", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ 1_000 }} {{ 0x1F }} {{ 0b11 }} {{ 0o17 }} {{ 00 }}",
    "é\n {{ bad", "{{ }}", "{{ 1 + }}", "{{ [1, 2 }}", "{% if %}{% endif %}", "{% if true %}x", "{% for x in %}{% endfor %}", "{% endif %}", "{% nope %}", "{{ x. }}", "{{ x[ }}",
    "{{ 1 2 }}", "{{ 'open }}", "{{ a ? b }}", "{% set x %}", "{% set 1 = 2 %}", "{% set true = 2 %}", "{% macro m(a=1, b) %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ f(*a, *b) }}", "{# open", "{% raw %}open",
    "{% for x in y %}{% if z %}{% endfor %}{% endif %}", "\n\n{% if a %}\n{{ 1 | }}\n{% endif %}", "{{ (1, 2 }}", "{{ ) }}", "{{ 'a' 'b' }}", "{{ a not b }}", "{{ 1.5.2 }}", "{%", "{{", "{% if x %}{% else %}{% else %}{% endif %}",
    "{{ '\\x4' }}", "{{ '\\u12' }}", "{% call 5 %}{% endcall %}", "{{ a.b.1c }}", "{{ 0777 }}", "{% block a %}{% endblock %}{% block a %}{% endblock %}", "{% if a: %}x{% endif %}", "{% with a=1 %}{{ a }}{% endwith %}",
    "{{ x is defined and y is not defined or z is none }}", "{{ -1 | abs }} {{ 1 + 1 is odd }} {{ 'a' ~ 'b' | upper }} {{ not x | length }}", "{%- macro a() -%} x {%- endmacro -%} {{ a() }}",
]

CHATS = list(diff_jinja.OUR_TEMPLATES.values()) + [
    "{%- for m in messages %}\n    {%- if m.content is string %}\n        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n",
    "{% for m in messages %}{{ m.content.split('</think>')[-1].lstrip('\\n') if m.content is string else m.content | map(attribute='type') | join }}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}\n<{{ k }}>{{ v | tojson if v is not string else v }}{% endfor %}{% endfor %}{% endfor %}",
    "{% for t in tools %}{{ t.function.parameters.properties['items'].type }}{{ t.function.parameters.properties.items is callable }}{{ t | tojson(indent=4) }}{% endfor %}",
    "{{ messages | map(attribute='content') | select('string') | join('|') }}{{ messages[-1].content[0].text }}{{ messages[0]['role'] == 'system' and messages[1:] | length }}",
    "{{ messages[9].role }}{{ messages[9].role.x }}",
]


def cases():
    for context, lines in GROUPS:
        for template in lines.strip("\n").split("\n"):
            yield template, context
    for template in SINGLE:
        yield template, {}
    for template in CHATS:
        yield template, CHAT
    for i in range(120):
        yield diff_jinja.Templates(random.Random(f"case {i}")).template(), diff_jinja.CONTEXT


def write_corpus(folder, rows):
    os.makedirs(folder, exist_ok=True)
    for i, (template, context) in enumerate(rows):
        with open(f"{folder}/{i:03d}", "wb") as f:
            f.write(template.encode() + b"\0" + json.dumps(context, ensure_ascii=False).encode())


def main():
    rows = [c for c in cases() if " at 0x" not in str(jinja_oracle.render(*c))]
    os.makedirs("tests/golden/text", exist_ok=True)
    with open("tests/golden/text/jinja_cases.jsonl", "w", encoding="utf-8") as f:
        for template, context in rows:
            result = jinja_oracle.render(template, context)
            f.write(json.dumps({"template": template, "context": context, **result}, ensure_ascii=False) + "\n")
    if "--corpus" in sys.argv:
        write_corpus("tests/fuzz/corpus/template", [r for r in rows if len(r[0]) < 900][::6])


if __name__ == "__main__":
    main()
