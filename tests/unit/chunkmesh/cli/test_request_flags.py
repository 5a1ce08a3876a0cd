"""chunkmesh.cli.request_flags: request fields in the words of the command line."""

from __future__ import annotations

import typer

from chunkmesh.cli import generate
from chunkmesh.cli.request_flags import FLAGS, in_flags
from chunkmesh.v1 import generation_pb2 as pb


def test_every_field_of_the_flags_is_named_by_one() -> None:
    """A user can only mend what he can find in the help."""
    command = typer.main.get_command(generate.app)
    known = {flag for parameter in command.params for flag in parameter.opts}
    fields = {*pb.SamplingParams.DESCRIPTOR.fields_by_name, "request_id", "priority", "cache_salt"}
    assert fields <= FLAGS.keys()
    assert {FLAGS[name] for name in fields} <= known


def test_fields_in_a_text_become_flags() -> None:
    """Also those beside the one at fault; words of English stay."""
    text = "min_new_tokens is 5, must be at most 3: max_new_tokens is 3 and the prompt leaves 9"
    expected = "--min-new-tokens is 5, must be at most 3: --max-new-tokens is 3 and the prompt"
    assert in_flags(text, "sampling_params.min_new_tokens") == f"{expected} leaves 9"
    assert in_flags("stop[0] has 0 characters", "sampling_params.stop") == (
        "--stop[0] has 0 characters"
    )
    assert in_flags("n is 200, must be from 1 to 128", "sampling_params.n").startswith("--n is 200")
    assert in_flags("--top-p is 2", "sampling_params.top_p") == "--top-p is 2"


def test_what_the_text_does_not_name_stands_behind_it() -> None:
    """A field without a flag is named as other programs know it; a prompt needs no name."""
    assert in_flags("already running", "request_id") == "already running (--request-id)"
    assert in_flags("too many", "chunk_tokens") == "too many (field chunk_tokens)"
    assert in_flags("the prompt has 9 tokens", "text") == "the prompt has 9 tokens"
    assert in_flags("4 bytes over the limit", "") == "4 bytes over the limit"
