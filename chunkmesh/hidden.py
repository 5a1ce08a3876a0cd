"""Texts as they may be shown: without the passwords in their URLs. Pure."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(?<=://)([^/@\s]*:)[^/@\s]*(?=@)")


def without_passwords(text: str) -> str:
    """Replace the password of each URL by ***."""
    return _PASSWORD.sub(r"\1***", text)
