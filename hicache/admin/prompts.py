"""Prompts that a user names, turned into ids and page digests by a scheduler."""

from __future__ import annotations

import dataclasses
import json

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
        text = unicode_text("--text", self.text or "")
        try:
            if self.tokens is not None:
                ids = generation_pb2.TokenIds(ids=json.loads(self.tokens.read_text()))
                return generation_pb2.TokenizeRequest(input_ids=ids, cache_salt=salt)
            if self.prompt_file is not None:
                text = self.prompt_file.read_text(encoding="utf-8")
        except OSError as error:
            fail(f"{error.filename}: {error.strerror}", EXIT_USAGE)
        except (ValueError, TypeError, RecursionError) as error:
            fail(f"{self.tokens or self.prompt_file}: {error}", EXIT_USAGE)
        return generation_pb2.TokenizeRequest(text=text, cache_salt=salt)


def tokenized(prompt: GivenPrompt) -> generation_pb2.TokenizeResponse:
    """Ask the scheduler for the ids and page digests of a prompt."""
    request = prompt.request()
    where = address("--scheduler", prompt.scheduler)
    reply = ask_scheduler(where, lambda scheduler: scheduler.Tokenize(request, timeout=WORK_S))
    if not reply.namespace:
        fail(f"the scheduler at {where} has no route yet, so it knows no pages", EXIT_ERROR)
    return reply
