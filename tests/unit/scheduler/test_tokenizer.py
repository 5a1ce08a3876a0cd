"""Text and chats become the ids that the model was trained on."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import transformers

from chunkmesh.errors import ConfigError, InvalidRequest
from scheduler.chat_template import ChatMessage
from scheduler.model_files import read_model_files
from scheduler.tokenizer import Tokenizer
from tests.bytes_tokenizer import BOS, EOS, EOT, write_bytes_folder

LETTERS = "abcdefghijklmnopqrstuvwxyzabcdefghijklmn"
CHAT = [ChatMessage(role="user", content=LETTERS)]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    """Return the bytes tokenizer, which begins every text with <bos>."""
    return Tokenizer(read_model_files(write_bytes_folder(tmp_path / "model")))


def set_field(folder: Path, file: str, **fields: object) -> None:
    """Change fields of a JSON file."""
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_bos_occurs_once_in_chat_rendered_text_and_text(tokenizer: Tokenizer) -> None:
    """The template writes BOS and the tokenizer adds one: the model must see one (O03)."""
    chat_ids = tokenizer.encode_chat(CHAT).tolist()
    rendered_ids = tokenizer.encode(f"<bos>[user]{LETTERS}").tolist()
    bare_ids = tokenizer.encode(LETTERS).tolist()
    assert chat_ids == rendered_ids == [BOS, *f"[user]{LETTERS}".encode()]
    assert len(chat_ids) == 47
    assert bare_ids == [BOS, *LETTERS.encode()]


def test_two_bos_in_the_text_are_the_clients_wish(tokenizer: Tokenizer) -> None:
    """Nothing is added, and nothing taken away."""
    assert tokenizer.encode("<bos><bos>a").tolist() == [BOS, BOS, 0x61]


def test_no_bos_where_the_model_has_none(tmp_path: Path) -> None:
    """A bos_token in the config alone does not put it before texts."""
    folder = write_bytes_folder(tmp_path, adds_bos=False)
    tokenizer = Tokenizer(read_model_files(folder))
    assert tokenizer.encode("ab").tolist() == [0x61, 0x62]
    assert tokenizer.encode("<bos><bos>a").tolist() == [BOS, BOS, 0x61]


@pytest.mark.parametrize("processor_adds", [True, False])
@pytest.mark.parametrize("adds_bos", [True, False, None])
@pytest.mark.parametrize("kind", [None, "LlamaTokenizerFast"])
def test_the_post_processor_decides_as_in_transformers(
    tmp_path: Path, processor_adds: bool, adds_bos: bool | None, kind: str | None
) -> None:
    """Since its version 5 transformers reads no add_bos_token where there is a tokenizer.json."""
    folder = write_bytes_folder(tmp_path, adds_bos=processor_adds)
    fields = {"add_bos_token": adds_bos, "tokenizer_class": kind}
    stated = {name: value for name, value in fields.items() if value is not None}
    set_field(folder, "tokenizer_config.json", **stated)
    expected = transformers.AutoTokenizer.from_pretrained(folder)("ab")["input_ids"]
    assert expected == ([BOS] if processor_adds else []) + [0x61, 0x62]
    tokenizer = Tokenizer(read_model_files(folder))
    assert expected == tokenizer.encode("ab").tolist()
    assert tokenizer.encode("<bos>ab").tolist() == [BOS, 0x61, 0x62]


def test_encoding_on_several_threads_gives_the_same_ids(tokenizer: Tokenizer) -> None:
    """Long prompts are encoded off the loop."""
    texts = [chr(0x61 + index) * 50_000 for index in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(tokenizer.encode, texts))
    assert [ids.tolist() for ids in results] == [[BOS, *text.encode()] for text in texts]


def test_output_text_leaves_special_tokens_out_unless_asked(tokenizer: Tokenizer) -> None:
    """skip_special_tokens is true by default."""
    for skip, expected in ((True, "ab"), (False, "a<eot>b")):
        sink = tokenizer.output_text(stop=(), skip_special_tokens=skip)
        text = "".join(sink.push(token_id) for token_id in [0x61, EOT, 0x62]) + sink.flush()
        assert text == expected
        assert tokenizer.decode([0x61, EOT, 0x62], skip_special_tokens=skip) == expected


def test_end_tokens_come_from_the_generation_config_first(tmp_path: Path) -> None:
    """A chat model often ends with another token than its base model."""
    folder = write_bytes_folder(tmp_path)
    assert read_model_files(folder).eos_ids == {EOS, EOT}
    (folder / "generation_config.json").unlink()
    assert read_model_files(folder).eos_ids == {EOS}


def test_the_models_sampling_defaults_are_read(tmp_path: Path) -> None:
    """They apply where a request says nothing."""
    folder = write_bytes_folder(tmp_path)
    set_field(folder, "generation_config.json", temperature=0.6, top_k=20)
    defaults = read_model_files(folder).sampling_defaults
    assert (defaults.temperature, defaults.top_p, defaults.top_k) == (0.6, None, 20)


@pytest.mark.parametrize(
    ("fields", "temperature"),
    [
        ({"do_sample": False}, 0.0),
        ({"do_sample": False, "temperature": 0.6}, 0.0),
        ({"do_sample": True, "temperature": 0.6}, 0.6),
        ({"do_sample": True}, None),
        ({}, None),
    ],
)
def test_a_model_that_says_not_to_sample_is_greedy(
    tmp_path: Path, fields: dict[str, object], temperature: float | None
) -> None:
    """As in transformers; a file that says nothing leaves the choice to the contract's default."""
    folder = write_bytes_folder(tmp_path)
    set_field(folder, "generation_config.json", repetition_penalty=1.1, **fields)
    defaults = read_model_files(folder).sampling_defaults
    assert (defaults.temperature, defaults.repetition_penalty) == (temperature, 1.1)


def test_a_template_file_comes_before_the_field(tmp_path: Path) -> None:
    """New models keep the template in a file of its own."""
    folder = write_bytes_folder(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert Tokenizer(read_model_files(folder)).encode_chat(CHAT).tobytes()[-4:-3] == b"!"


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    """Some models name one for tools beside it."""
    folder = write_bytes_folder(tmp_path)
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    set_field(folder, "tokenizer_config.json", chat_template=named)
    assert read_model_files(folder).chat_template == "d"


def test_a_chat_without_a_template_is_refused(tmp_path: Path) -> None:
    """A base model has none; guessing one would give bad answers silently."""
    folder = write_bytes_folder(tmp_path)
    set_field(folder, "tokenizer_config.json", chat_template=None)
    with pytest.raises(InvalidRequest, match="no chat template"):
        Tokenizer(read_model_files(folder)).encode_chat(CHAT)


def test_missing_files_are_named_all_at_once(tmp_path: Path) -> None:
    """One run tells everything that is to be fetched."""
    with pytest.raises(ConfigError, match=r"lacks config.json, tokenizer.json, tokenizer_config"):
        read_model_files(tmp_path)
    with pytest.raises(ConfigError, match="no folder"):
        read_model_files(tmp_path / "absent")


@pytest.mark.parametrize(
    ("file", "fields", "words"),
    [
        ("config.json", {"vocab_size": 0}, "vocab_size is 0, must be an integer >= 1"),
        ("config.json", {"architectures": []}, "architectures"),
        ("generation_config.json", {"eos_token_id": [264]}, r"eos_token_id is \[264\].* below 264"),
        ("generation_config.json", {"top_p": 7}, "top_p is 7"),
        ("generation_config.json", {"temperature": "hot"}, "generation_config"),
        ("generation_config.json", {"temperature": True}, "temperature is True, must be a number"),
        ("generation_config.json", {"top_p": float("nan")}, "top_p is nan"),
        ("generation_config.json", {"top_k": float("inf")}, "top_k is inf, must be a whole number"),
        ("generation_config.json", {"top_k": "5"}, "top_k is '5', must be a whole number"),
        ("generation_config.json", {"do_sample": "no"}, "do_sample is 'no', must be true or false"),
        ("generation_config.json", {"repetition_penalty": -1}, "repetition_penalty is -1"),
        ("tokenizer_config.json", {"chat_template": 3}, "chat_template is no text"),
    ],
)
def test_an_unusable_value_stops_the_start(
    tmp_path: Path, file: str, fields: dict[str, object], words: str
) -> None:
    """The file and the value are named."""
    folder = write_bytes_folder(tmp_path)
    set_field(folder, file, **fields)
    with pytest.raises(ConfigError, match=words):
        read_model_files(folder)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "generation_config.json"])
def test_a_damaged_file_stops_the_start(tmp_path: Path, file: str) -> None:
    """A download cut short is named."""
    folder = write_bytes_folder(tmp_path)
    (folder / file).write_text('{"half": ')
    with pytest.raises(ConfigError, match=file):
        Tokenizer(read_model_files(folder))


def test_a_text_that_cannot_fit_is_refused_unread(tmp_path: Path) -> None:
    """Encoding 64 MiB first would hold up every other request for a minute."""
    files = read_model_files(write_bytes_folder(tmp_path / "model"))
    tokenizer = Tokenizer(files, max_tokens=10)  # its longest tokens, such as <bos>, have 5
    assert len(tokenizer.encode("a" * 50)) == 51
    with pytest.raises(InvalidRequest, match=r"51 characters; .* more than 50") as text:
        tokenizer.encode("a" * 51)
    chat = [ChatMessage(role="user", content="a" * 51)]
    with pytest.raises(InvalidRequest, match="more than 50") as rendered:
        tokenizer.encode_chat(chat)
    assert (text.value.field, rendered.value.field) == ("text", "chat")
