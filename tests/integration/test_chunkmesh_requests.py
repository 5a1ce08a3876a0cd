"""`chunkmesh generate` and `chat` against a scripted Generation server."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from chunkmesh import __version__
from chunkmesh.errors import InvalidRequest, Overloaded, StageUnavailable
from chunkmesh.v1 import common_pb2
from chunkmesh.v1 import generation_pb2 as pb
from tests.cli_run import run_cli
from tests.fake_generation import FakeGeneration, script

_TIMEOUT_S = 30


@pytest.fixture
def server() -> Iterator[FakeGeneration]:
    """Yield a server that answers Hello world."""
    made = FakeGeneration()
    yield made
    made.close()


def _run(command: str, *words: str, typed: str | None = None) -> Result:
    return run_cli(command, *words, typed=typed)


def test_generate_streams_the_text(server: FakeGeneration) -> None:
    """Standard output holds the text and a final newline, nothing else."""
    result = _run("generate", "Say hello", "--server", server.address)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello world\n", "")
    assert server.requests[0].text == "Say hello"
    assert server.requests[0].stream


def test_generate_sends_only_the_flags_that_were_given(server: FakeGeneration) -> None:
    """An absent field takes the model's own default; zero is a value."""
    _run("generate", "x", "--server", server.address, "--temperature", "0", "--top-k", "3",
         "--stop", "a", "--stop", "b", "--seed", "18446744073709551615", "--ignore-eos",
         "--cache-salt", "mine")  # fmt: skip
    request = server.requests[0]
    sent = request.sampling_params
    assert (sent.HasField("temperature"), sent.temperature, sent.top_k) == (True, 0.0, 3)
    assert (list(sent.stop), sent.seed, sent.ignore_eos) == (["a", "b"], 2**64 - 1, True)
    assert not any(sent.HasField(name) for name in ("top_p", "min_p", "max_new_tokens"))
    assert request.cache_salt == "mine"


def test_generate_sends_every_sampling_flag(server: FakeGeneration) -> None:
    """Whatever the contract knows can be tried from the command line."""
    _run("generate", "x", "--server", server.address, "--json", "--n", "1",
         "--min-new-tokens", "1", "--max-new-tokens", "9", "--top-p", "0.5", "--min-p", "0.25",
         "--temperature", "1", "--top-k", "2", "--seed", "3", "--stop", "a",
         "--frequency-penalty", "-1.5", "--presence-penalty", "0.5", "--repetition-penalty", "1.25",
         "--logit-bias", "7=-100", "--logit-bias", "300=1.5", "--stop-token-id", "5",
         "--stop-token-id", "6", "--keep-special-tokens", "--ignore-eos",
         "--until-full", "--logprobs", "--prompt-logprobs", "--top-logprobs", "4")  # fmt: skip
    sent = server.requests[0].sampling_params
    given = {field.name for field, _ in sent.ListFields()} | {"skip_special_tokens"}
    assert given == set(pb.SamplingParams.DESCRIPTOR.fields_by_name)
    assert sent.HasField("skip_special_tokens")
    assert not sent.skip_special_tokens
    assert (dict(sent.logit_bias), list(sent.stop_token_ids)) == ({7: -100.0, 300: 1.5}, [5, 6])
    penalties = (sent.frequency_penalty, sent.presence_penalty, sent.repetition_penalty)
    assert penalties == (-1.5, 0.5, 1.25)
    assert (sent.n, sent.top_logprobs) == (1, 4)


@pytest.mark.parametrize("bias", ["7", "=1", "7=", "x=1", "7=high", "-1=2", "4294967296=1"])
def test_generate_refuses_a_bias_that_is_none(bias: str) -> None:
    """A slip is shown with the form that is wanted, before anything is sent."""
    result = _run("generate", "x", f"--logit-bias={bias}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--logit-bias" in result.stderr


def test_generate_refuses_logprobs_that_it_would_not_show() -> None:
    """Text for people has no place for them."""
    result = _run("generate", "x", "--logprobs")
    assert result.exit_code == 2
    assert "--json" in result.stderr


def test_several_outputs_are_labelled_and_in_order(server: FakeGeneration) -> None:
    """Their chunks come interleaved, so each is shown whole, when those before it have ended."""
    server.replies = [*completed(1, "second"), *completed(0, "first")]
    result = _run("generate", "x", "--n", "2", "--server", server.address)
    assert (result.exit_code, result.stdout) == (0, "[0] first\n[1] second\n")
    assert server.requests[0].sampling_params.n == 2
    assert not server.requests[0].stream


def test_json_of_several_outputs_lists_them_by_index(server: FakeGeneration) -> None:
    """Scripts find the prompt's share once and each output's own."""
    server.replies = [*completed(1, "second"), *completed(0, "first")]
    result = _run("generate", "x", "--json", "--n", "2", "--server", server.address)
    assert [(0, "first"), (1, "second")] == [
        (output["index"], output["text"]) for output in json.loads(result.stdout)["outputs"]
    ]


def test_json_tells_log_probabilities(server: FakeGeneration) -> None:
    """By position, with the digits that they have; the first prompt token has none."""
    top = common_pb2.TokenLogprobs(
        logprobs=[-0.440189, -1.44], num_top=1, top_ids=[65, 66], top_logprobs=[-0.1, -0.2]
    )
    bare = common_pb2.TokenLogprobs(logprobs=[-3.5])
    complete = pb.GenerateComplete(text="AB", output_ids=[65, 7], logprobs=top, ttft_ms=12.3456789)
    server.replies = [
        pb.GenerateResponse(prompt_logprobs=pb.PromptLogprobs(start=1, logprobs=bare)),
        pb.GenerateResponse(prompt_logprobs=pb.PromptLogprobs(start=2, logprobs=bare)),
        pb.GenerateResponse(complete=complete),
    ]
    result = _run("generate", "x y z", "--json", "--logprobs", "--prompt-logprobs",
                  "--server", server.address)  # fmt: skip
    fields = json.loads(result.stdout)
    assert fields["logprobs"] == [
        {"token_id": 65, "logprob": -0.440189, "top": [{"token_id": 65, "logprob": -0.1}]},
        {"token_id": 7, "logprob": -1.44, "top": [{"token_id": 66, "logprob": -0.2}]},
    ]
    assert fields["prompt_logprobs"] == [
        {"token_id": 0, "logprob": None, "top": []},
        {"token_id": 1, "logprob": -3.5, "top": []},
        {"token_id": 2, "logprob": -3.5, "top": []},
    ]
    assert fields["ttft_ms"] == 12.3


def test_log_probabilities_of_given_ids_stand_beside_them(
    server: FakeGeneration, tmp_path: Path
) -> None:
    """Whoever sends ids need not have them told by the scheduler."""
    ids = tmp_path / "ids.json"
    ids.write_text("[7, 300]")
    told = pb.PromptLogprobs(start=1, logprobs=common_pb2.TokenLogprobs(logprobs=[-0.5]))
    server.replies = [pb.GenerateResponse(prompt_logprobs=told), *script()[-1:]]
    words = ("--json", "--prompt-logprobs", "--server", server.address)
    fields = json.loads(_run("generate", "--input-ids", str(ids), *words).stdout)
    told_of = [(each["token_id"], each["logprob"]) for each in fields["prompt_logprobs"]]
    assert told_of == [(7, None), (300, -0.5)]


def test_likeliest_ids_need_something_to_stand_beside() -> None:
    """Named by its flag, before anything is sent."""
    result = _run("generate", "x", "--json", "--top-logprobs", "3")
    assert result.exit_code == 2
    assert "--top-logprobs needs --logprobs" in result.stderr


def test_a_request_has_a_name_and_a_priority(server: FakeGeneration) -> None:
    """`chunkmesh trace --request-id` asks by that name."""
    words = ("--json", "--server", server.address)
    server.replies[-1].request_id = "mine"
    result = _run("generate", "x", "--request-id", "mine", "--priority", "-7", *words)
    sent = server.requests[0]
    assert (sent.request_id, sent.priority) == ("mine", -7)
    assert json.loads(result.stdout)["request_id"] == "mine"
    server.replies = [*completed(1, "second"), *completed(0, "first")]
    server.replies[-1].request_id = "both"
    assert json.loads(_run("generate", "x", "--n", "2", *words).stdout)["request_id"] == "both"
    _run("chat", "--priority", "9", "--server", server.address, typed="hi\n")
    assert server.requests[-1].priority == 9


def test_an_answer_may_be_begun(server: FakeGeneration) -> None:
    """The model goes on inside the assistant's message."""
    _run("generate", "hi", "--chat", "--answer-start", "Well, ", "--server", server.address)
    chat = server.requests[0].chat
    assert [(m.role, m.content) for m in chat.messages] == [("user", "hi"), ("assistant", "Well, ")]
    assert chat.continue_final_message
    assert _run("generate", "hi", "--answer-start", "x").exit_code == 2


def completed(index: int, text: str) -> list[pb.GenerateResponse]:
    """Return one output's chunk and end."""
    return [
        pb.GenerateResponse(chunk=pb.GenerateStreamChunk(text=text, index=index)),
        pb.GenerateResponse(complete=pb.GenerateComplete(text=text, index=index)),
    ]


def test_generate_json_has_exactly_the_promised_fields(server: FakeGeneration) -> None:
    """Scripts parse this object."""
    server.replies = script("a\u00e9", cached=16)
    result = _run("generate", "x", "--json", "--server", server.address)
    assert json.loads(result.stdout) == {
        "request_id": "",
        "index": 0,
        "text": "a\u00e9",
        "output_ids": [5, 6, 7],
        "prompt_tokens": 100,
        "cached_tokens": 16,
        "completion_tokens": 3,
        "finish_reason": "length",
        "matched_stop": None,
        "matched_token_id": None,
        "ttft_ms": 12.5,
        "e2e_ms": 20.0,
        "chunks": [64, 20],
        "num_preemptions": 0,
    }
    assert not server.requests[0].stream


def test_generate_reads_ids_and_files(server: FakeGeneration, tmp_path: Path) -> None:
    """Ids pass untouched, as bytes, for they may be a million."""
    ids, text = tmp_path / "ids.json", tmp_path / "prompt.txt"
    ids.write_text("[0, 1, 49151]")
    text.write_text("from a file\n", encoding="utf-8")
    _run("generate", "--input-ids", str(ids), "--server", server.address)
    _run("generate", "--prompt-file", str(text), "--server", server.address)
    _run("generate", "--prompt-file", "-", "--server", server.address, typed="piped")
    _run("generate", "hi", "--chat", "--server", server.address)
    _run("generate", "--server", server.address, typed="only piped")
    _run("generate", "--input-ids", "-", "--server", server.address, typed="[3, 4]")
    by_ids, by_file, by_pipe, by_chat, only_piped, piped_ids = server.requests
    for sent, ids_sent in ((by_ids, [0, 1, 49151]), (piped_ids, [3, 4])):
        assert np.frombuffer(sent.input_ids_le, "<u4").tolist() == ids_sent
    assert (by_file.text, by_pipe.text) == ("from a file\n", "piped")
    assert only_piped.text == "only piped"
    assert [(m.role, m.content) for m in by_chat.chat.messages] == [("user", "hi")]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[1, -2]", "entry 1 is -2, not an id"),
        ("[true]", "entry 0 is true, not an id"),
        ("[4294967296]", "entry 0 is 4294967296, not an id"),
        ('{"ids": []}', "expected a JSON list"),
        ("[1,", "cannot read"),
    ],
)
def test_generate_refuses_a_bad_file_of_ids(tmp_path: Path, content: str, complaint: str) -> None:
    """A wrong file is a usage error, found before anything is sent."""
    path = tmp_path / "ids.json"
    path.write_text(content)
    result = _run("generate", "--input-ids", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert complaint in result.stderr


@pytest.mark.parametrize(
    "words",
    [[], [""], ["x", "--input-ids", "y"], ["x", "--server", "nowhere"], ["x", "--priority", "101"]],
)
def test_generate_refuses_a_wrong_call(words: list[str]) -> None:
    """Usage errors end with 2, as everywhere."""
    assert _run("generate", *words).exit_code == 2


def test_an_error_is_one_line_with_reason_and_flag(server: FakeGeneration) -> None:
    """The status details are for this line; wrong input ends with 2 whoever finds it."""
    server.error = InvalidRequest("top_p is 2, must be at most 1", field="sampling_params.top_p")
    result = _run("generate", "x", "--server", server.address, "--top-p", "2")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "chunkmesh: invalid request: --top-p is 2, must be at most 1\n"


def test_an_error_says_when_to_try_again(server: FakeGeneration) -> None:
    """RetryInfo is of use only if it is shown."""
    server.error = Overloaded("128 requests wait, the limit", retry_after_s=2.5)
    result = _run("generate", "x", "--server", server.address)
    expected = "chunkmesh: overloaded: 128 requests wait, the limit (try again in 2.5 s)\n"
    assert expected == result.stderr


def test_a_missing_stage_is_not_taken_for_a_missing_server(server: FakeGeneration) -> None:
    """Both are UNAVAILABLE, but only one is cured by starting a mesh."""
    server.error = StageUnavailable("layers 15-29 have no worker")
    result = _run("generate", "x", "--server", server.address)
    expected = "chunkmesh: stage unavailable: layers 15-29 have no worker\n"
    assert (result.exit_code, result.stderr) == (1, expected)


@pytest.mark.parametrize("command", [["generate", "x"], ["status"], ["status", "--json"]])
def test_an_unreachable_server_is_named_with_a_remedy(command: list[str]) -> None:
    """The commonest failure of a newcomer."""
    result = _run(*command, "--server", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "no answer from 127.0.0.1:1" in result.stderr
    assert "chunkmesh up" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_ctrl_c_cancels_the_call(server: FakeGeneration) -> None:
    """A request nobody waits for must stop costing the mesh."""
    server.hang = True
    command = [sys.executable, "-m", "chunkmesh.cli", "generate", "x", "--server", server.address]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == "Hello"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=_TIMEOUT_S)
    assert (process.returncode, errors) == (130, "\n[stopped]\n")
    assert server.cancelled.wait(10)


def test_prefill_shows_a_bar_on_a_terminal_only(server: FakeGeneration) -> None:
    """Progress is asked for and drawn on standard error if a person looks at it."""
    server.hang = True
    server.replies = [*script()[:1], *script()[-1:]]
    command = [sys.executable, "-m", "chunkmesh.cli", "generate", "x", "--server", server.address]
    primary, secondary = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=secondary, env=environment
    ) as process:
        os.close(secondary)
        drawn = b""
        while b"1.5 s left" not in drawn:
            drawn += os.read(primary, 4096)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_TIMEOUT_S)
    os.close(primary)
    assert b"64/100 tokens" in drawn
    assert b"chunk 1/2" in drawn
    assert b"so far" in drawn
    assert server.requests[0].return_progress


def test_chat_keeps_the_history_until_reset(server: FakeGeneration) -> None:
    """Each turn sends all messages; /reset keeps only the system message."""
    typed = "first\n\nsecond\n/reset\nthird\n/exit\nnever\n"
    result = _run("chat", "--system", "Be brief.", "--server", server.address, typed=typed)
    assert (result.exit_code, result.stdout) == (0, "Hello world\n" * 3)
    chats = [[(m.role, m.content) for m in request.chat.messages] for request in server.requests]
    opening = ("system", "Be brief.")
    assert chats == [
        [opening, ("user", "first")],
        [opening, ("user", "first"), ("assistant", "Hello world"), ("user", "second")],
        [opening, ("user", "third")],
    ]


def test_chat_takes_the_flags_of_sampling(server: FakeGeneration) -> None:
    """What can be tried on one prompt can be talked with; the length has a default of its own."""
    _run("chat", "--server", server.address, "--min-p", "0.25", "--stop", "END",
         "--presence-penalty", "1", "--logit-bias", "7=2", typed="hi\n")  # fmt: skip
    sent = server.requests[0].sampling_params
    assert (sent.min_p, list(sent.stop), sent.presence_penalty) == (0.25, ["END"], 1.0)
    assert (dict(sent.logit_bias), sent.max_new_tokens) == ({7: 2.0}, 512)


def test_piped_chat_ends_at_an_error(server: FakeGeneration) -> None:
    """A script must notice that a turn failed."""
    server.error = InvalidRequest("prompt of 9000 tokens, the context holds 8192", field="chat")
    result = _run("chat", "--server", server.address, typed="first\nsecond\n")
    assert (result.exit_code, len(server.requests)) == (2, 1)
    assert "9000 tokens" in result.stderr


def test_version() -> None:
    """--version prints the version alone."""
    assert _run("--version").stdout == f"{__version__}\n"
