#!/usr/bin/env python3
"""Writes src/text/unicode_table.inc: what the reference tokenizers know of each character.

The Python package `tokenizers` is asked about every code point, since its parts follow
different versions of Unicode; Perl answers what version 9 (its normalization) and 14 knew.

    tools/gen_unicode.py > src/text/unicode_table.inc
"""
import string
import subprocess

import tokenizers
from tokenizers import Regex, pre_tokenizers

CATEGORIES = ("Cn Cc Cf Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk "
              "Sm So Zl Zp Zs").split()
PUNCT, INERT, STABLE = 0x20, 0x40, 0x80
ALTERNATES = 1 << 31
POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def chars_matching(pattern):
    """The code points that the package's regular expressions match with `pattern`."""
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    found = set()
    for i in range(0, len(POINTS), 4096):
        text = "".join(map(chr, POINTS[i:i + 4096]))
        for _, (begin, end) in split.pre_tokenize_str(text):
            found.update(map(ord, text[begin:end]))
    return found


def perl_ranges(condition):
    """The code points for which Perl's regular expression holds."""
    script = (r'no warnings; for my $c (0..0x10ffff) { next if $c >= 0xd800 && $c <= 0xdfff;'
              r' print "$c\n" if chr($c) =~ /^%s$/ }' % condition)
    out = subprocess.run(["perl", "-e", script], check=True, capture_output=True, text=True)
    return set(map(int, out.stdout.split()))


def runs_of(info):
    """Entries of runs[]: properties that alternate, as those of cased letters do, take two."""
    runs, c = [], 0
    while c < len(info):
        end = c + 2
        while end < len(info) and info[end] == info[end - 2] and info[c] != info[c + 1]:
            end += 1
        if end - c >= 4:
            runs += [ALTERNATES | c << 8 | info[c], (c + 1) << 8 | info[c + 1]]
        else:
            end = c + 1
            while end < len(info) and info[end] == info[c]:
                end += 1
            runs.append(c << 8 | info[c])
        c = end
    return runs


def main():
    info = [0] * 0x110000
    for i, name in enumerate(CATEGORIES):
        if name == "Cs":
            continue
        for c in chars_matching(r"\p{%s}" % name) if name != "Cn" else ():
            info[c] |= i
    for c in range(0xD800, 0xE000):
        info[c] = CATEGORIES.index("Cs")

    punct = pre_tokenizers.Punctuation()
    known = perl_ranges(r"\p{Present_In: 9.0}")
    stable = perl_ranges(r"(?=\p{NFC_QC=Y})\p{ccc=0}")
    for c in POINTS:
        if len(punct.pre_tokenize_str("a" + chr(c) + "a")) > 1 and chr(c) not in string.punctuation:
            info[c] |= PUNCT
        if c not in known:
            info[c] |= INERT
        if c not in known or c in stable:
            info[c] |= STABLE
    for c in map(ord, string.punctuation):
        info[c] |= PUNCT

    known = perl_ranges(r"\p{Present_In: 14.0}")
    new = []
    for c in POINTS:
        if c in known or info[c] & 31 == 0:
            continue
        if new and new[-1][1] == c - 1 and info[new[-1][0]] & 31 == info[c] & 31:
            new[-1][1] = c
        else:
            new.append([c, c])

    print("/* Written by tools/gen_unicode.py from tokenizers %s; see unicode.c. */"
          % tokenizers.__version__)
    print("/* clang-format off */")
    print("/* First code point of a run << 8 | what its characters are.  With bit 31, its character and")
    print(" * that of the next run alternate up to the run after that. */")
    print("static const uint32_t runs[] = {")
    runs = runs_of(info)
    for i in range(0, len(runs), 9):
        print(" ".join("0x%x," % run for run in runs[i:i + 9]))
    print("};")
    print("/* Characters of Unicode 15 and 16: first, last; a category each. */")
    print("static const uint32_t newer[][2] = {")
    for i in range(0, len(new), 6):
        print(" ".join("{ 0x%x, 0x%x }," % (a, b) for a, b in new[i:i + 6]))
    print("};")
    print("/* clang-format on */")


main()
