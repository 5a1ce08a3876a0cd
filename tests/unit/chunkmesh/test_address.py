"""Addresses as users write them."""

import pytest

from chunkmesh.address import HostPort
from chunkmesh.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("next:5001", "next", 5001),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:50051", "::1", 50051),
        (":50051", "127.0.0.1", 50051),
        (" a.b:65535 ", "a.b", 65535),
    ],
)
def test_parse(text: str, host: str, port: int) -> None:
    """All usual ways to write an address are read; a bare port never opens the network."""
    assert HostPort(host=host, port=port) == HostPort.parse(text)


@pytest.mark.parametrize(
    "text", ["", "next", "next:", "a:b", "::1:5", "a:-1", "http://a:1", "a b:1"]
)
def test_parse_names_the_bad_text(text: str) -> None:
    """The user must see which of several addresses is wrong."""
    with pytest.raises(ConfigError) as caught:
        HostPort.parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["http://127.0.0.1:50051", "redis://a:1/0", " grpc://a:1"])
def test_parse_says_that_a_scheme_is_too_much(text: str) -> None:
    """People copy addresses from where they need one."""
    scheme = text.strip().partition("://")[0]
    with pytest.raises(ConfigError, match=f"leave out {scheme}://, write HOST:PORT"):
        HostPort.parse(text)


def test_parse_names_the_limit_of_a_port() -> None:
    """A port over the limit is told apart from a malformed address."""
    with pytest.raises(ConfigError, match="port 65536 is over 65535"):
        HostPort.parse("a:65536")


@pytest.mark.parametrize("text", ["next:5001", "[::1]:50051"])
def test_text_round_trips(text: str) -> None:
    """Addresses travel as text in protos and come back the same."""
    assert text == str(HostPort.parse(text))
