"""Twenty prompts of all kinds of text, for tests that compare a real model with transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from tests.prompts import long_prompt

Messages: TypeAlias = tuple[tuple[str, str], ...]
"""Role and content of each."""

_FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
_FLAG = "\U0001f3f3\ufe0f\u200d\U0001f308"
_THUMB = "\U0001f44d\U0001f3fd"

TEXTS: Mapping[str, str] = {
    "english": "The old lighthouse keeper climbed the stairs every evening, because",
    "python": (
        "class Stack:\n    def __init__(self):\n        self._items = []\n\n    def push(self, x):"
    ),
    "c": "#include <stdio.h>\n\nint main(void) {\n\tfor (int i = 0; i < 10; i++) {\n\t\tprintf(",
    "json": '{"users": [{"id": 1, "tags": ["a", "b"], "ok": true}, {"id": 2, "tags": null, ',
    "diff": "--- a/main.py\n+++ b/main.py\n@@ -1,4 +1,5 @@\n import os\n-import sys\n+import ",
    "chinese": (
        "\u4e2d\u56fd\u7684\u9996\u90fd\u662f\u5317\u4eac\uff0c\u6700\u5927\u7684\u57ce\u5e02\u662f"
    ),
    "japanese": (
        "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3001\u30c6\u30af\u30ce\u30ed"
        "\u30b8\u30fc\u306e"
    ),
    "arabic": (
        "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c "
        "\u0643\u064a\u0641 \u062d\u0627\u0644\u0643\u061f"
    ),
    "emoji": f"Repeat: {_FAMILY} {_FLAG} {_THUMB} {_FAMILY} {_FLAG} {_THUMB} {_FAMILY}",
    "combining accents": (
        "Cafe\u0301 cre\u0300me, nin\u0303o, Z\u0351\u036b\u0343\u036aa\u0329\u0328lgo, \u1e69"
        " s\u0323\u0307"
    ),
    "whitespace": "a  b   c\t\td\n\n\ne \t \n f\r\n\r\n    g\u00a0h\u3000i   \n\t",
    "numbers": "3.14159 1,000,000 0x1F -42 1e-10 2024-12-31T23:59:59Z +49 30 123456 1/2 007",
    "long words": "Donaudampfschifffahrtsgesellschaftskapit\u00e4n"
    + "a" * 300
    + " antidisestablishment",
    "special look-alikes": (
        "<|im_start|>user\nWrite <|im_end|> and <|endoftext|> and <|im_start |>\n"
    ),
    "markup": '<html>\n  <body class="x">&amp; &#39;<br/></body>\n</html>\n<!-- \\n %s ${HOME} -->',
    "formulas": (
        "\u2200x \u2208 \u211d: x\u00b2 \u2265 0 \u21d2 \u222b f(x) dx \u2260 \u221e; \\frac{a"
        "}{b} \u03b1\u03b2\u03b3"
    ),
    "long": long_prompt(2200, seed=11),
}
CHATS: Mapping[str, Messages] = {
    "chat with a system message": (
        ("system", "You are a pirate. Answer briefly."),
        ("user", "Where is the treasure?"),
    ),
    "chat with an empty system message": (
        ("system", ""),
        ("user", "Say \u4f60\u597d three times."),
    ),
    "chat of several turns": (
        ("user", "  Remember: 17.\n"),
        ("assistant", "I will.<|im_end|>"),
        ("user", "Which number? \U0001f914"),
    ),
}
assert len(TEXTS) + len(CHATS) == 20
