"""The official OpenAI client on a gateway over a mesh: what it sends, and what it reads."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk

from tests.bytes_tokenizer import EOS, write_bytes_folder
from tests.gate import Gate
from tests.scripted_stage import Script, logits_row, scripted_stages
from tests.served_gateway import Served, served_mesh

MODEL = "tiny"
PLAYED, ACCENT, FOUR = 7, 8, 9
"""Seeds by which the script tells requests apart."""
FOUR_LOGPROBS = (-0.4402, -1.4402, -2.4402, -3.4402)
HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def gate() -> Gate:
    """Hold forwards where a test closes it."""
    gate = Gate()
    gate.open()
    return gate


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, gate: Gate) -> Iterator[Served]:
    """Run one mesh of two stages and a gateway for all of these tests."""
    script = Script(
        gate=gate,
        ids={PLAYED: list(b"one two three four"), ACCENT: [0xC3, 0xA9, EOS]},
        logits={FOUR: [logits_row({65: 1.0, 66: 0.0, 67: -1.0, 68: -2.0}, others=-1e9)]},
        otherwise_logits=logits_row(dict.fromkeys(range(65, 73), 0.0)),
    )
    folder = write_bytes_folder(
        tmp_path_factory.mktemp("m") / MODEL, config={"num_hidden_layers": 2}
    )
    with served_mesh(folder, scripted_stages(2, script)) as running:
        yield running


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    """Yield a client that tries nothing twice; in the end nothing is left of its requests."""
    with OpenAI(base_url=served.openai_url, api_key="EMPTY", max_retries=0) as client:
        yield client
    served.at_rest()


@pytest.fixture
async def async_client(served: Served) -> AsyncIterator[AsyncOpenAI]:
    """Yield the asynchronous one, likewise."""
    async with AsyncOpenAI(base_url=served.openai_url, api_key="EMPTY", max_retries=0) as client:
        yield client
    await asyncio.to_thread(served.at_rest)


def test_models(client: OpenAI) -> None:
    """Tools ask for the list to find the name, and for its context."""
    (model,) = client.models.list().data
    assert (MODEL, "model", "chunkmesh") == (model.id, model.object, model.owned_by)
    assert 4096 == getattr(model, "max_model_len", None)
    assert model == client.models.retrieve(MODEL)
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other/name")
    assert "model_not_found" == caught.value.code


def test_a_completion(client: OpenAI) -> None:
    """Text, end and usage."""
    answer = client.completions.create(model=MODEL, prompt="hello", seed=PLAYED, max_tokens=7)
    (choice,) = answer.choices
    assert ("one two", "length", 0) == (choice.text, choice.finish_reason, choice.index)
    assert answer.usage is not None
    assert (6, 7, 13) == (
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
        answer.usage.total_tokens,
    )
    assert answer.id.startswith("cmpl-")
    assert answer.model == MODEL


def test_a_completion_without_a_length_has_openais(client: OpenAI) -> None:
    """16 tokens."""
    answer = client.completions.create(model=MODEL, prompt="hello", seed=PLAYED)
    assert "one two three fo" == answer.choices[0].text


def test_a_chat_without_a_length_goes_on_until_its_end(client: OpenAI) -> None:
    """More than the mesh's default of 128 tokens."""
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, logit_bias={"65": 100}, stop=["A" * 200]
    )
    assert answer.usage is not None
    assert 200 == answer.usage.completion_tokens
    assert "stop" == answer.choices[0].finish_reason


def test_a_chat_goes_through_the_models_template(client: OpenAI) -> None:
    """<bos>[user]hello are twelve tokens."""
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, seed=PLAYED, max_completion_tokens=3
    )
    (choice,) = answer.choices
    assert ("one", "assistant") == (choice.message.content, choice.message.role)
    assert answer.usage is not None
    assert 12 == answer.usage.prompt_tokens
    assert answer.id.startswith("chatcmpl-")


def test_prompts_of_every_form(client: OpenAI) -> None:
    """A text and its ids are the same prompt; several come back in their order."""
    texts = client.completions.create(
        model=MODEL, prompt=["ab", "abc"], seed=PLAYED, max_tokens=3, n=2
    )
    ids = client.completions.create(
        model=MODEL, prompt=[[256, 97, 98], [256, 97, 98, 99]], seed=PLAYED, max_tokens=3, n=2
    )
    assert ["one"] * 4 == [choice.text for choice in texts.choices]
    assert [0, 1, 2, 3] == [choice.index for choice in texts.choices]
    assert texts.usage is not None
    assert (7, 12) == (texts.usage.prompt_tokens, texts.usage.completion_tokens)
    assert texts.usage == ids.usage
    single = client.completions.create(model=MODEL, prompt=[256, 97, 98], seed=PLAYED, max_tokens=3)
    assert single.usage is not None
    assert 3 == single.usage.prompt_tokens


def test_cached_tokens_are_told(client: OpenAI) -> None:
    """Pages hold 16 tokens, and the last prompt token is always computed."""
    prompt = "a prompt that nobody else of these tests has"
    usages = [
        client.completions.create(model=MODEL, prompt=prompt, max_tokens=1).usage for _ in range(2)
    ]
    details = [None if usage is None else usage.prompt_tokens_details for usage in usages]
    assert [0, 32] == [None if each is None else each.cached_tokens for each in details]


def test_a_stop_string_ends_before_itself(client: OpenAI) -> None:
    """Streamed or not, no letter of it is told."""
    for stream in (False, True):
        answer: Any = client.chat.completions.create(
            model=MODEL, messages=HELLO, seed=PLAYED, stop=[" th", "xyz"], stream=stream
        )
        choices = [each.choices[0] for each in (answer if stream else [answer])]
        said = [(each.delta if stream else each.message).content for each in choices]
        assert "one two" == "".join(filter(None, said))
        assert "stop" == choices[-1].finish_reason
        assert " th" == choices[-1].stop_reason


def test_a_seed_repeats_several_outputs(client: OpenAI) -> None:
    """The outputs of one request are not all the same, and come again by its seed."""

    def texts() -> list[str]:
        answer = client.completions.create(
            model=MODEL, prompt="x", seed=3, n=3, max_tokens=24, temperature=1
        )
        return [choice.text for choice in answer.choices]

    first = texts()
    assert len(set(first)) > 1
    assert first == texts()


def test_logprobs_of_a_completion(client: OpenAI) -> None:
    """The model's own, whatever the sampling; the chosen token among the likeliest."""
    answer = client.completions.create(
        model=MODEL, prompt="x", seed=FOUR, max_tokens=2, temperature=0.5, top_p=0.9, logprobs=4
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.top_logprobs is not None
    for token, logprob, top in zip(
        logprobs.tokens or [], logprobs.token_logprobs or [], logprobs.top_logprobs, strict=True
    ):
        expected = dict(zip("ABCD", FOUR_LOGPROBS, strict=True))
        assert top == pytest.approx(expected, abs=1e-4)
        assert logprob == pytest.approx(expected[token], abs=1e-4)
    assert [0, 1] == logprobs.text_offset


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_chat_give_the_bytes_of_tokens(client: OpenAI, stream: bool) -> None:
    """Two tokens make one character, and the end token is told by its name."""
    answer: Any = client.chat.completions.create(
        model=MODEL, messages=HELLO, seed=ACCENT, logprobs=True, top_logprobs=1, stream=stream
    )
    choices = [each.choices[0] for each in (answer if stream else [answer])]
    told = [token for each in choices if each.logprobs for token in each.logprobs.content]
    assert [b"\xc3", b"\xa9", b"<eos>"] == [bytes(token.bytes) for token in told]
    assert ["\\xc3", "\\xa9", "<eos>"] == [token.token for token in told]
    assert all(math.isfinite(token.logprob) and token.top_logprobs for token in told)
    said = [(each.delta if stream else each.message).content for each in choices]
    assert "\u00e9" == "".join(filter(None, said))
    assert "stop" == choices[-1].finish_reason
    assert choices[-1].stop_reason is None


def test_a_streamed_chat(client: OpenAI) -> None:
    """Who speaks, what is said, why it ended, what it cost: in this order."""
    chunks: list[ChatCompletionChunk] = list(
        client.chat.completions.create(
            model=MODEL, messages=HELLO, seed=PLAYED, max_tokens=7, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    first, *middle, end, usage = chunks
    assert ("assistant", "") == (first.choices[0].delta.role, first.choices[0].delta.content)
    assert "one two" == "".join(chunk.choices[0].delta.content or "" for chunk in middle)
    assert all(chunk.usage is None for chunk in (first, *middle, end))
    assert "length" == end.choices[0].finish_reason
    assert [] == usage.choices
    assert usage.usage is not None
    assert 7 == usage.usage.completion_tokens
    assert 1 == len({chunk.id for chunk in chunks})


def test_several_streamed_outputs_and_prompts(client: OpenAI) -> None:
    """Pieces of all of them come in one stream, each with its index and its own end."""
    texts, ends = ["", "", "", ""], {}
    for chunk in client.completions.create(
        model=MODEL, prompt=["a", "b"], n=2, seed=PLAYED, max_tokens=7, stream=True
    ):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        if choice.finish_reason:
            ends[choice.index] = choice.finish_reason
    assert ["one two"] * 4 == texts
    assert dict.fromkeys(range(4), "length") == ends


async def test_the_asynchronous_client(async_client: AsyncOpenAI) -> None:
    """Many at once, streamed and whole, each with its own answer."""

    async def streamed(length: int) -> str:
        stream = await async_client.chat.completions.create(
            model=MODEL, messages=HELLO, seed=PLAYED, max_tokens=length, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def whole(length: int) -> str:
        answer = await async_client.completions.create(
            model=MODEL, prompt="x", seed=PLAYED, max_tokens=length
        )
        return answer.choices[0].text

    lengths = range(1, 9)
    works = itertools.chain(map(streamed, lengths), map(whole, lengths))
    expected = ["one two three four"[:length] for length in lengths]
    assert [*expected, *expected] == await asyncio.gather(*works)


def test_a_stream_that_is_closed_ends_its_request(client: OpenAI, served: Served) -> None:
    """Long before it would have ended; nothing is left in the mesh."""
    stream = client.completions.create(
        model=MODEL, prompt="x", max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    served.has_requests(1)
    stream.close()
    served.at_rest()


async def test_a_client_that_gives_up_ends_its_request(
    async_client: AsyncOpenAI, served: Served, gate: Gate
) -> None:
    """While it waits for a whole answer: the first token never came."""
    gate.close()
    try:
        asking = asyncio.create_task(
            async_client.completions.create(model=MODEL, prompt=["x", "y"], max_tokens=5)
        )
        await asyncio.to_thread(served.has_requests, 2)
        asking.cancel()
        await asyncio.to_thread(served.has_requests, 0)
    finally:
        gate.open()


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": [264]}, "prompt", "invalid_value"),
        ({"prompt": "x" * 5000}, "prompt", "invalid_value"),
        ({"extra_body": {"min_tokens": 17}}, "min_tokens", "invalid_value"),
        ({"extra_body": {"colour": "red"}}, "colour", "unknown_parameter"),
        ({"echo": True}, "echo", "unsupported_parameter"),
        ({"model": "gpt-4o"}, "model", "model_not_found"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_told_in_openais_form(
    client: OpenAI, body: dict[str, Any], param: str, code: str, stream: bool
) -> None:
    """Whoever found it, gateway or mesh, and before a stream begins."""
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(**{"model": MODEL, "prompt": "x", "stream": stream, **body})
    error = caught.value
    assert (404 if param == "model" else 400) == error.status_code
    assert (param, code) == (error.param, error.code)
    assert error.request_id
