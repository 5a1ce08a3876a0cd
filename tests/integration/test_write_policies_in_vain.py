"""Settings by which no page can ever be stored: whoever chose them hears of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.bytes_tokenizer import write_bytes_folder
from tests.mesh import mesh
from tests.scripted_stage import Script, scripted_stages


@pytest.mark.parametrize(
    ("policy", "on_devices", "host_tokens", "is_told"),
    [
        ("write_back", False, 0, True),
        ("write_through_selective", False, 0, True),
        ("write_through", False, 0, False),
        ("write_back", True, 0, False),
        ("write_back", False, 1024, False),
    ],
)
async def test_a_write_policy_without_pages_to_write_is_warned_of(
    tmp_path: Path, policy: str, *, on_devices: bool, host_tokens: int, is_told: bool
) -> None:
    """Two of the policies store what workers have kept; where they keep nothing all is missed."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 1})
    with capture_logs() as logs:
        async with mesh(
            folder,
            scripted_stages(1, Script()),
            host_tokens=host_tokens,
            enable_prefix_caching=on_devices,
            hicache_write_policy=policy,
        ):
            pass
    told = [each for each in logs if each["event"].startswith("nothing will be stored")]
    assert [policy] * is_told == [each["hicache_write_policy"] for each in told]
