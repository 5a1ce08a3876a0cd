"""Texts as they may be shown: without the passwords in their URLs. Pure."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(?<=://)([^/@\s]*:)[^/@\s]*(?=@)")
_IN_QUERY = re.compile(r"([?&][a-z_]*password=)[^&#\s,]*")


def without_passwords(text: str) -> str:
    """Replace the password of each URL by ***."""
    return _IN_QUERY.sub(r"\1***", _PASSWORD.sub(r"\1***", text))
