"""Bytes and texts, changed at random."""

from __future__ import annotations

import random
import re
import struct

#: Numbers at which programs go wrong.
EDGES = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1]
#: What a text may hold in the place of a word.
WORDS = [
    *(
        "nan",
        "-inf",
        "inf",
        "1e400",
        "-1",
        "0",
        "9" * 5000,
        "0x" + "f" * 40,
        "true",
        '""',
        "[]",
        "{}",
        "[[1]]",
        '"\\u0000"',
    ),
    *(
        "1979-05-27T07:32:00Z",
        "'''a\nb'''",
        "[" * 2000,
        "{a={a={a=1}}}",
        "é",
        "\x00",
        "\ufeff",
        '"../../x"',
        "=",
        "]",
        "}",
    ),
    *(
        "[method]",
        "[[gescl]]",
        "name",
        "stream",
        "training.lr",
        "{low = 1, high = 2}",
        "{low = nan, high = 2, log = true}",
    ),
]


def changed(content: bytes, draw: random.Random) -> bytes:
    """Bytes changed in a few places."""
    result = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 4, 20])):
        place, length = draw.randrange(len(result) + 1), draw.choice([1, 1, 4, 16, 100])
        match draw.randrange(6):
            case 0 if place < len(result):
                result[place] ^= 1 << draw.randrange(8)
            case 1:
                del result[place : place + length]
            case 2:
                result[place:place] = draw.randbytes(length)
            case 3:
                result[place:place] = result[place : place + length]
            case 4:
                size, order = draw.choice([(1, "<B"), (2, "<H"), (4, "<I"), (4, ">I"), (8, "<Q"), (8, ">Q")])
                number = draw.choice(EDGES) % 2 ** (8 * size)
                result[place : place + size] = struct.pack(order, number)
            case 5 if draw.random() < 0.2:
                del result[place:]
    return bytes(result)


def reworded(text: str, draw: random.Random) -> bytes:
    """A text with other words, lines twice or in other places, or other bytes."""
    if draw.random() < 0.2:
        return changed(text.encode(), draw)
    words = re.findall(r"\w+|\s+|[^\w\s]", text)
    for _ in range(draw.choice([1, 1, 2, 5])):
        place = draw.randrange(len(words))
        match draw.randrange(4):
            case 0 | 1:
                words[place] = draw.choice(WORDS)
            case 2:
                words[place] = words[draw.randrange(len(words))]
            case 3:
                start = draw.randrange(len(words))
                words[place:place] = words[start : start + draw.randrange(12)]
    return "".join(words).encode(errors="surrogatepass")
