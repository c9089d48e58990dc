"""Random text that is hard on tokenizers; shared by the scripts that compare with others."""

WORDS = ("the of and don't I'll we're it's THEY'VE he'd i'm James' a b naïve café Straße ΣΊΣΥΦΟΣ "
         "İstanbul ﬁne ſo x1 42 007 1234567 3.14 e-mail http://x.y/?a=b&c=d foo_bar __init__ "
         "int main(void) {} return; <div> </div> == != -> :: ... -- \\n \\t \"quoted\" 'single' "
         "привет мир Ελλάδα שלום مرحبا नमस्ते दुनिया สวัสดี 안녕하세요 你好世界 こんにちは カタカナ "
         "Việt Nam người Đồng tiếng ångström 𝔘𝔫𝔦 ①②③ ½ ¼ x² ㎏ ㍿ ﷺ 🙂 👩‍👩‍👧 🇩🇪 ❤️ 🩷 🫨 €5 $10 50% #tag @name").split()
SPACES = [" ", " ", " ", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\u00a0",
          "\u3000", "\u2028", "\u200b", "        ", "\x0b", "\x85", "\u180e"]
RANGES = [(0x20, 0x7E), (0, 0x1F), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF),
          (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x1FFF),
          (0x2000, 0x206F), (0x20D0, 0x214F), (0x2460, 0x24FF), (0x3000, 0x30FF), (0x4E00, 0x4F00),
          (0xA7C0, 0xA7FF), (0xAC00, 0xAD00), (0xF900, 0xFAFF), (0xFE00, 0xFFFD), (0x10D40, 0x10D8F),
          (0x11380, 0x113E2), (0x1D400, 0x1D4FF), (0x1F300, 0x1FAFF), (0x31350, 0x31360), (0, 0x10FFFF)]


def random_char(rng):
    while True:
        low, high = rng.choice(RANGES)
        c = rng.randint(low, high)
        if not 0xD800 <= c <= 0xDFFF:
            return chr(c)


def random_piece(rng, special):
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(WORDS)
    if kind < 0.55 and special:
        token = rng.choice(special)
        return token if rng.random() < 0.8 else token[:rng.randint(1, len(token))]
    if kind < 0.75:
        return "".join(random_char(rng) for _ in range(rng.randint(1, 6)))
    if kind < 0.8:
        return rng.choice("a0 .\n!é中ก\u0301🙂") * rng.randint(1, 40)
    if kind < 0.85:
        return str(rng.randint(0, 10 ** rng.randint(1, 12)))
    return rng.choice(SPACES)


def random_text(rng, special=()):
    """One text; `special` are tokens to be put into it, whole or cut."""
    parts = []
    for _ in range(rng.randint(0, 24)):
        parts.append(random_piece(rng, special))
        if rng.random() < 0.5:
            parts.append(rng.choice(SPACES[:8]))
    return "".join(parts)
