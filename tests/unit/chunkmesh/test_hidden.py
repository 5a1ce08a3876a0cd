"""What may be shown of a URL."""

from __future__ import annotations

import pytest

from chunkmesh.hidden import without_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("rediss://u:s3cret@h:1/0", "rediss://u:***@h:1/0"),
        ("redis://:s3cret@h", "redis://:***@h"),
        ("redis://a:x@h,redis://b:y@i", "redis://a:***@h,redis://b:***@i"),
        ("redis://h?password=s3cret&db=1", "redis://h?password=***&db=1"),
        ("rediss://h?db=1&ssl_password=s3cret", "rediss://h?db=1&ssl_password=***"),
    ],
)
def test_passwords_are_stars(text: str, shown: str) -> None:
    """Wherever a URL has room for one."""
    assert shown == without_passwords(text)
