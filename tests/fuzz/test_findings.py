"""What fuzzing has found, each as it was made small: refused now, and never to come back."""

from __future__ import annotations

import json

import pytest

from chunkmesh.errors import InvalidRequest, InvariantViolated, LinkError
from chunkmesh.json_text import parse_json
from chunkmesh.v1 import common_pb2
from chunkmesh.v1 import stage_pb2 as pb
from scheduler import codec
from scheduler.hello_checks import check_hello
from stage_worker.identity import Identity
from stage_worker.received_orders import ReceivedOrders
from tests.fuzz.all_targets import TARGETS
from tests.fuzz.lying_worker import HELLO
from tests.fuzz.message_mutation import MessageT
from tests.scripted_stage import Script, ScriptedStage

DEEP = "[" * 100_000
HALF = '"\\ud800"'
BIG = "1" + "0" * 400
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
}
YARN = {"rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_theta": 1.0}
EXPERTS = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 2**31 - 1}
INFO = b"fingerprint=00\nmodel=m\nkv_dtype=f\nrope={}\nadapter=\nsalted=1\npage_tokens="
DEED = b"peer=p\nmethod=Pin\nrequest=all\nnum_pages=3\nnum_bytes="
LAYER = "model.layers." + "9" * 5000 + ".x"
FOUND: list[tuple[str, bytes]] = [
    *(("namespace record", INFO + number) for number in (b"-1", b"4294967296", b"1_0")),
    ("namespace record", INFO.replace(b"model=m", b"model=" + b"m" * 1001) + b"16"),
    *(("audit entry", DEED + number) for number in (b"-1", b"4099999999999999999999")),
    ("replica events", b"\x05\x2b\0\0\0" + b"\xff" * 8 + bytes(32) + b"a-1"),
    *(("worker's config.json", text.encode()) for text in (DEEP, f'{{"torch_dtype": {DEEP}', HALF)),
    *(
        ("worker's config.json", json.dumps(CONFIG | changes).encode())
        for changes in (
            YARN,
            EXPERTS,
            {"rope_theta": 1e-320},
            {"rms_norm_eps": 1e-320},
            {"hidden_size": 2**31 - 1},
        )
    ),
    ("scheduler's config.json", DEEP.encode()),
    *(
        ("scheduler's config.json", json.dumps(CONFIG | {field: 2**40}).encode())
        for field in ("vocab_size", "max_position_embeddings", "num_hidden_layers")
    ),
    ("generation_config.json", f'{{"temperature": {BIG}}}'.encode()),
    ("generation_config.json", f'{{"top_p": {BIG}}}'.encode()),
    ("tokenizer_config.json", b'{"bos_token": "\\ud800"}'),
    ("safetensors index", f'{{"weight_map": {DEEP}'.encode()),
    ("safetensors index", json.dumps({"weight_map": {LAYER: "a.safetensors"}}).encode()),
    ("safetensors index", b'{"weight_map": {"a": "\\ud800"}}'),
    ("GGUF", b"GGUF\x03\0\0\0"),
    ("TOML settings", b"page-size = " + b"[" * 5000),
    ("bench result", b'{"kind": "chunkmesh bench result", "format": 1, "runs": [{"end": 1}]}'),
    ("bench prompts", DEEP.encode()),
    ("token ids", DEEP.encode()),
    ("command line's config.json", b'{"architectures": [[]], "num_hidden_layers": 4}'),
    ("command line's config.json", f'{{"num_hidden_layers": {BIG}}}'.encode()),
    ("manifest", DEEP.encode()),
    ("warm file", DEEP.encode()),
    ("chat template", b"{% for a in b %}" * 21 + b"{% endfor %}" * 21),
]


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_found_in_a_decoder(name: str, data: bytes) -> None:
    """Each ended in an error that nobody expected, or was believed."""
    (target,) = (each for each in TARGETS if each.name == name)
    assert not target.check(data)


@pytest.mark.parametrize("text", [DEEP, HALF, "1" * 5000, "{"])
def test_json_that_is_none(text: str) -> None:
    """One kind of error, whatever is wrong."""
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
    with pytest.raises(ValueError, match=r"."):
        parse_json(text.encode())


def test_json_with_characters_of_all_planes() -> None:
    """Escaped pairs are whole characters."""
    assert parse_json(b'["\\ud83c\\udf36", "\\u00e9"]') == ["\U0001f336", "\u00e9"]


def _with(message: MessageT, **fields: object) -> MessageT:
    changed = type(message)()
    changed.CopyFrom(message)
    changed.MergeFrom(type(message)(**fields))
    return changed


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kv_capacity_tokens": 2**63}, "kv_capacity_tokens is 9223372036854775808"),
        ({"host_capacity_tokens": 2**63}, "host_capacity_tokens"),
        ({"kv_bytes_per_token": 2**63}, "kv_bytes_per_token"),
        ({"device": "\x1b[2J"}, "printable"),
        ({"data_address": "x" * 301}, "data_address"),
        ({"config_digest": bytes(65)}, "a digest of 65 bytes"),
        ({"backends": [common_pb2.Backend(name="\n")]}, "backends.name"),
    ],
)
def test_found_in_hellos(fields: dict[str, object], words: str) -> None:
    """Pools of 2**59 pages made Join unwritable, and left a worker without a stream behind."""
    check_hello(HELLO)
    with pytest.raises(InvalidRequest, match=words):
        check_hello(_with(HELLO, **fields))


@pytest.mark.parametrize("field", ["started_us", "acked_us", "restored_bytes", "restore_us"])
def test_found_in_acknowledgements(field: str) -> None:
    """Times of centuries fit no message; all users' timelines and answers ended INTERNAL."""
    ack = pb.Ack()
    setattr(ack, field, 1 << 53)
    codec.acked_from(ack, 0)
    setattr(ack, field, (1 << 53) + 1)
    with pytest.raises(InvariantViolated, match=field):
        codec.acked_from(ack, 0)


JOIN = pb.Join(epoch=1, num_stages=1, page_tokens=16, num_pages=4, max_microbatch_tokens=64)
ENTRY = pb.Entry(row=1, num_tokens=2, new_page_ids=[0])
MICROBATCH = pb.Microbatch(epoch=1, entries=[ENTRY], token_ids_le=bytes(8))
ROW = pb.SamplingRow(top_p=1, repetition_penalty=1)
DIGEST = bytes(32)


def _orders() -> ReceivedOrders:
    """Return what a worker of the only stage, with four pages, checks orders by."""
    identity = Identity(
        incarnation="i",
        description=ScriptedStage(0, 2, 2, Script()).description,
        kv_capacity_tokens=64,
        host_capacity_tokens=0,
        peer=None,
    )
    return ReceivedOrders(identity, 0)


def _received(*orders: pb.AttachResponse) -> None:
    """Check orders behind a sound Join, as a worker of the only stage does."""
    received = _orders()
    for order in (pb.AttachResponse(join=JOIN), *orders):
        assert received.accepts(order)


def test_sound_orders_pass() -> None:
    """What the scheduler sends is taken as it is."""
    step = pb.Microbatch(
        epoch=1,
        seq_no=1,
        entries=[pb.Entry(row=1, start=2, num_tokens=1)],
        token_ids_le=bytes(4),
        sampling=[ROW],
    )
    _received(pb.AttachResponse(microbatch=MICROBATCH), pb.AttachResponse(microbatch=step))


@pytest.mark.parametrize(
    "order",
    [
        pb.AttachResponse(join=_with(JOIN, num_pages=2**31)),
        pb.AttachResponse(join=_with(JOIN, page_tokens=2**31)),
        pb.AttachResponse(join=_with(JOIN, max_microbatch_tokens=2**32 - 1)),
        pb.AttachResponse(join=_with(JOIN, num_stages=2)),
        pb.AttachResponse(join=_with(JOIN, inbound_token=b"short")),
        pb.AttachResponse(microbatch=pb.Microbatch(epoch=1)),
        pb.AttachResponse(microbatch=_with(MICROBATCH, seq_no=1)),
        pb.AttachResponse(microbatch=_with(MICROBATCH, entries=[ENTRY])),
        pb.AttachResponse(microbatch=_with(MICROBATCH, token_ids_le=b"abcd1234567")),
        pb.AttachResponse(microbatch=_with(MICROBATCH, sampling=[_with(ROW, entry=1)])),
        pb.AttachResponse(microbatch=_with(MICROBATCH, sampling=[_with(ROW, bias_ids=[1])])),
        pb.AttachResponse(microbatch=_with(MICROBATCH, sampling=[_with(ROW, seen_ids=[1])])),
        pb.AttachResponse(
            microbatch=_with(MICROBATCH, sampling=[_with(ROW, temperature=float("nan"))])
        ),
        pb.AttachResponse(
            microbatch=_with(MICROBATCH, prompt_targets=[pb.PromptTargets(target_ids_le=b"abc")])
        ),
        pb.AttachResponse(
            microbatch=pb.Microbatch(
                epoch=1, entries=[_with(ENTRY, new_page_ids=[4])], token_ids_le=bytes(8)
            )
        ),
        pb.AttachResponse(
            microbatch=pb.Microbatch(
                epoch=1, entries=[_with(ENTRY, start=2**32 - 1)], token_ids_le=bytes(8)
            )
        ),
        pb.AttachResponse(copy_pages=pb.CopyPages(source_ids=[0])),
        pb.AttachResponse(copy_pages=pb.CopyPages(source_ids=[0], target_ids=[4])),
        pb.AttachResponse(load=pb.Load(digests=[b"short"])),
        pb.AttachResponse(load=pb.Load(digests=[DIGEST] * 5)),
        pb.AttachResponse(commit_load=pb.CommitLoad(page_ids=[4])),
        pb.AttachResponse(store=pb.Store(pages=[pb.StorePage(digest=DIGEST)])),
        pb.AttachResponse(save_pages=pb.SavePages(digests=[DIGEST], page_ids=[0], host_ids=[0])),
    ],
)
def test_found_in_orders(order: pb.AttachResponse) -> None:
    """Each brought the process down, weights and all."""
    with pytest.raises(LinkError, match=r"."):
        _received(order)


def test_an_order_before_join() -> None:
    """Nothing is known then of pages."""
    received = _orders()
    with pytest.raises(LinkError, match="before join"):
        received.accepts(pb.AttachResponse(load=pb.Load()))


def test_a_microbatch_of_an_earlier_epoch() -> None:
    """Such may arrive late, and is left alone."""
    received = _orders()
    received.accepts(pb.AttachResponse(join=_with(JOIN, epoch=9)))
    assert not received.accepts(pb.AttachResponse(microbatch=MICROBATCH))
