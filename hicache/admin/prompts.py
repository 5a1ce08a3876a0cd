"""Prompts that a user names, turned into ids and page digests by a scheduler."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from chunkmesh.json_text import parse_json
from chunkmesh.v1 import generation_pb2
from hicache.admin import flags
from hicache.admin.calls import WORK_S, ask_scheduler
from hicache.admin.exits import EXIT_ERROR, EXIT_USAGE, address, fail, unicode_text


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GivenPrompt:
    """The flags that name a prompt, and who makes ids of it."""

    text: flags.Text = None
    prompt_file: flags.PromptFile = None
    tokens: flags.Tokens = None
    chat_role: flags.ChatRole = None
    cache_salt: flags.CacheSalt = ""
    scheduler: flags.Scheduler = flags.SCHEDULER

    @property
    def num_given(self) -> int:
        """How many prompts are named; only one is of use."""
        return sum(given is not None for given in (self.text, self.prompt_file, self.tokens))

    def request(self) -> generation_pb2.TokenizeRequest:
        """Read the prompt; ends the command if it cannot be read."""
        salt = unicode_text("--cache-salt", self.cache_salt)
        if self.num_given != 1:
            fail("give one of --text, --prompt-file and --tokens", EXIT_USAGE)
        if self.chat_role is not None and self.tokens is not None:
            fail("--chat-role needs --text or --prompt-file, not --tokens", EXIT_USAGE)
        text = unicode_text("--text", self.text or "")
        try:
            if self.tokens is not None:
                ids = generation_pb2.TokenIds(ids=parse_json(self.tokens.read_text()))
                return generation_pb2.TokenizeRequest(input_ids=ids, cache_salt=salt)
            if self.prompt_file is not None:
                text = self.prompt_file.read_text(encoding="utf-8")
        except OSError as error:
            fail(f"{error.filename}: {error.strerror}", EXIT_USAGE)
        except (ValueError, TypeError) as error:
            fail(f"{self.tokens or self.prompt_file}: {error}", EXIT_USAGE)
        return of_text(text, self.chat_role, cache_salt=salt)


def of_text(
    text: str, chat_role: flags.Role | None, *, cache_salt: str
) -> generation_pb2.TokenizeRequest:
    """Return a text as it is, or as a chat of one message."""
    if chat_role is None:
        return generation_pb2.TokenizeRequest(text=text, cache_salt=cache_salt)
    message = generation_pb2.ChatMessage(role=chat_role.value, content=text)
    return of_messages([message], cache_salt=cache_salt)


def of_messages(
    messages: Sequence[generation_pb2.ChatMessage], *, cache_salt: str
) -> generation_pb2.TokenizeRequest:
    """Return a chat; the assistant begins to speak only after the user."""
    is_asked = bool(messages) and messages[-1].role == flags.Role.USER
    chat = generation_pb2.Chat(messages=messages, add_generation_prompt=is_asked)
    return generation_pb2.TokenizeRequest(chat=chat, cache_salt=cache_salt)


def tokenized(prompt: GivenPrompt) -> generation_pb2.TokenizeResponse:
    """Ask the scheduler for the ids and page digests of a prompt."""
    request = prompt.request()
    where = address("--scheduler", prompt.scheduler)
    reply = ask_scheduler(where, lambda scheduler: scheduler.Tokenize(request, timeout=WORK_S))
    if not reply.namespace:
        fail(f"the scheduler at {where} has no route yet, so it knows no pages", EXIT_ERROR)
    return reply
