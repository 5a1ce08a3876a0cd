"""From a request's proto to the engine's RequestSpec: tokenize, check, digest the pages once.

Long prompts are worked on in a thread, so that the loop keeps turning.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import TypeVar

from chunkmesh.errors import InvalidRequest
from chunkmesh.pages import TokenIds, extend_chain
from chunkmesh.v1 import generation_pb2 as pb
from scheduler import validation
from scheduler.chat_template import ChatMessage, chat_end
from scheduler.events import RequestSpec
from scheduler.sampling_params import GivenParams
from scheduler.tokenizer import Tokenizer
from scheduler.validation import Door, KvPoolSize

_SHORT_BYTES = 4096
"""Prompts up to this size are worked on at once; a hop to a thread would cost more."""
_DECODE_BYTES = 64
"""To decode a token takes about as long as to encode so many bytes."""
_OPTIONAL = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_new_tokens",
    "min_new_tokens",
    "seed",
    "skip_special_tokens",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "n",
    "top_logprobs",
)
_Result = TypeVar("_Result")


class Intake:
    """Reads requests for one model."""

    def __init__(self, tokenizer: Tokenizer, door: Door) -> None:
        """Measure requests against door."""
        self._tokenizer = tokenizer
        self._door = door

    async def read(
        self,
        request: pb.GenerateRequest,
        name: str,
        *,
        user: str,
        is_operator: bool,
        namespace: bytes,
        pool: KvPoolSize,
    ) -> RequestSpec:
        """Make a checked request of a user, named so, for a route with such a pool.

        Raises:
            InvalidRequest: something in it is impossible; names field, value and limit.
        """
        validation.check_priority(request.priority, self._door, is_operator=is_operator)
        prompt_ids = await self.prompt_ids(request)
        params = validation.check_params(
            _given(request.sampling_params),
            self._door,
            prompt_tokens=len(prompt_ids),
            drawn_seed=secrets.randbits(64),
            pool=pool,
        )
        return RequestSpec(
            request_id=name,
            prompt_ids=prompt_ids,
            namespace=namespace,
            digests=await self.digests(prompt_ids, namespace, pool.page_tokens),
            max_new_tokens=params.max_new_tokens,
            asked_new_tokens=params.asked_new_tokens,
            min_new_tokens=params.min_new_tokens,
            end_ids=params.end_ids,
            sampling=params.sampling,
            priority=request.priority,
            user=user,
            texts=self._tokenizer.output_texts(
                params.num_outputs,
                stop=params.stop,
                skip_special_tokens=params.skip_special_tokens,
            ),
            prompt_top_logprobs=params.prompt_top_logprobs,
            chunk_tokens=tuple(request.chunk_tokens),
        )

    async def prompt_ids(self, request: pb.GenerateRequest | pb.TokenizeRequest) -> TokenIds:
        """Return the checked ids of a request's prompt.

        Raises:
            InvalidRequest: there is no prompt, or it does not fit the model.
        """
        field = request.WhichOneof("input")

        def convert() -> TokenIds:
            ids = self._convert(request, field)
            validation.check_prompt(ids, self._door, field=str(field))
            return ids

        # A template may take seconds over a short chat.
        return await _run(convert, _SHORT_BYTES + 1 if field == "chat" else prompt_bytes(request))

    async def token_bytes(self, ids: Sequence[int]) -> tuple[bytes, ...]:
        """Return what each id adds to a text.

        Raises:
            InvalidRequest: there are too many ids, or one is not in the vocabulary.
        """
        validation.check_token_ids(ids, self._door)

        def convert() -> tuple[bytes, ...]:
            return tuple(map(self._tokenizer.token_bytes, ids))

        return await _run(convert, _DECODE_BYTES * len(ids))

    async def digests(
        self, prompt_ids: TokenIds, namespace: bytes, page_tokens: int
    ) -> tuple[bytes, ...]:
        """Return the digest of each full page."""
        return await _run(
            lambda: extend_chain(namespace, prompt_ids, page_tokens), prompt_ids.nbytes
        )

    def _convert(
        self, request: pb.GenerateRequest | pb.TokenizeRequest, field: str | None
    ) -> TokenIds:
        """Turn whatever the prompt is into ids."""
        match field:
            case "text":
                validation.check_text(request.text)
                return self._tokenizer.encode(request.text)
            case "chat":
                return self._chat_ids(request.chat)
            case "input_ids":
                return validation.parse_ids(request.input_ids.ids)
            case "input_ids_le" if isinstance(request, pb.GenerateRequest):
                return validation.parse_ids_le(request.input_ids_le)
            case _:
                raise InvalidRequest(
                    "no prompt: give one of text, chat, input_ids, input_ids_le", field="input"
                )

    def _chat_ids(self, chat: pb.Chat) -> TokenIds:
        """Render and tokenize a chat."""
        adds = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else None
        end = chat_end(
            add_generation_prompt=adds, continue_final_message=chat.continue_final_message
        )
        messages = [ChatMessage(role=each.role, content=each.content) for each in chat.messages]
        return self._tokenizer.encode_chat(messages, end)


def prompt_bytes(request: pb.GenerateRequest | pb.TokenizeRequest) -> int:
    """Return about how much a prompt takes; to encode a long one for that would take too long."""
    match request.WhichOneof("input"):
        case "text":
            return len(request.text)
        case "chat":
            return sum(len(message.content) for message in request.chat.messages)
        case "input_ids":
            return 4 * len(request.input_ids.ids)
        case "input_ids_le" if isinstance(request, pb.GenerateRequest):
            return len(request.input_ids_le)
    return 0


async def _run(work: Callable[[], _Result], size_bytes: int) -> _Result:
    """Do work here if it is short, else in a thread."""
    return work() if size_bytes <= _SHORT_BYTES else await asyncio.to_thread(work)


def _given(params: pb.SamplingParams) -> GivenParams:
    """Read what the client set."""
    given = {name: getattr(params, name) for name in _OPTIONAL if params.HasField(name)}  # type: ignore[arg-type]
    return GivenParams(
        **given,
        stop=tuple(params.stop),
        stop_token_ids=tuple(params.stop_token_ids),
        ignore_eos=params.ignore_eos,
        logit_bias=tuple(params.logit_bias.items()),
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        until_full=params.until_full,
    )
