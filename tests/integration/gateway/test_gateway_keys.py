"""Who asks, through a gateway: keys and TLS are the scheduler's, and the gateway only hands on."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import httpx2
import openai
import pytest
from openai import OpenAI

from chunkmesh.trust.access import Role
from deploy.certs.certificates import Authority
from tests.bytes_tokenizer import write_bytes_folder
from tests.certificates import access, mesh_files, mesh_settings, new_authority
from tests.scripted_stage import Script, scripted_stages
from tests.served_gateway import Served, served_mesh

BLUE, GREEN = "blue-key-0123456789", "green-key-0123456789"
MODEL = "tiny"
PROMPT = "a prompt of more than one page of sixteen tokens"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Make the mesh's."""
    return new_authority(tmp_path_factory.mktemp("ca") / "mesh")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Served]:
    """Run a mesh with keys and TLS, and a gateway that calls it by TLS and speaks HTTPS."""
    folder = write_bytes_folder(
        tmp_path_factory.mktemp("m") / MODEL, config={"num_hidden_layers": 1}
    )
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.touch(mode=0o600)
    keys.write_text(f"{BLUE} blue\n{GREEN} green\n")
    http = authority.issue_role(Role.CLIENT)
    gateway = {
        "ssl_ca_certs": authority.certfile,
        "users_ssl_certfile": http.certfile,
        "users_ssl_keyfile": http.keyfile,
    }
    with served_mesh(
        folder,
        scripted_stages(1, Script()),
        gateway,
        api_key_file=keys,
        worker_tls=mesh_files(authority, Role.WORKER),
        user=access(authority, None),
        **mesh_settings(authority, Role.SCHEDULER),
    ) as running:
        yield running


@pytest.fixture
def http(served: Served, authority: Authority) -> Iterator[httpx2.Client]:
    """Yield a client that trusts the authority."""
    trusted = ssl.create_default_context(cafile=authority.certfile)
    url = served.url.replace("http://", "https://")
    with httpx2.Client(base_url=url, verify=trusted) as client:
        yield client


def client(http: httpx2.Client, key: str) -> OpenAI:
    """Return OpenAI's client with a key; it closes nothing."""
    return OpenAI(base_url=f"{http.base_url}/v1", api_key=key, max_retries=0, http_client=http)


@pytest.mark.parametrize("key", [BLUE, GREEN])
def test_a_key_of_the_schedulers_file_lets_in(http: httpx2.Client, key: str) -> None:
    """The gateway knows none, so that a key is revoked in one place."""
    answer = client(http, key).completions.create(model=MODEL, prompt="x", max_tokens=3)
    assert "AAA" == answer.choices[0].text
    assert [MODEL] == [model.id for model in client(http, key).models.list()]


@pytest.mark.parametrize("key", ["no-key-of-that-file", "x" * 600, "EMPTY"])
def test_another_key_is_401(http: httpx2.Client, key: str) -> None:
    """For models, too."""
    stranger = client(http, key)
    with pytest.raises(openai.AuthenticationError) as caught:
        stranger.completions.create(model=MODEL, prompt="x")
    assert "invalid_api_key" == caught.value.code
    assert key not in str(caught.value)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


@pytest.mark.parametrize("header", [None, "Basic eDp5", "Bearer", "Bearer \u00e9"])
def test_no_key_is_401(http: httpx2.Client, header: str | None) -> None:
    """Whatever stands in its place; the answer says what is asked for."""
    headers = {} if header is None else {b"authorization": header.encode("latin-1")}
    answer = http.post("/v1/completions", json={"model": MODEL, "prompt": "x"}, headers=headers)
    assert (401, "Bearer") == (answer.status_code, answer.headers["www-authenticate"])


def test_tenants_share_no_prefix(http: httpx2.Client) -> None:
    """Each key's prefixes are its tenant's own, as without a gateway."""
    cached = []
    for key in (BLUE, BLUE, GREEN):
        usage = client(http, key).completions.create(model=MODEL, prompt=PROMPT, max_tokens=1).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached.append(usage.prompt_tokens_details.cached_tokens)
    assert [0, 48, 0] == cached


def test_probes_ask_for_no_key(http: httpx2.Client) -> None:
    """Those who probe have none."""
    assert [200, 200, 200] == [
        http.get(path).status_code for path in ("/health", "/ready", "/metrics")
    ]
