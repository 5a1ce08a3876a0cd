"""Where a chat's prompt ends: at the assistant's turn, behind the last message, or inside it."""

from __future__ import annotations

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from chunkmesh.errors import InvalidRequest
from scheduler.chat_template import ChatMessage, ChatTemplate, chat_end

TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "trims": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "[INST] {{ m.content | trim }} [/INST]{% else %} {{ m.content | trim }}</s>{% endif %}"
    "{% endfor %}",
    "trims, blank behind": "{% for m in messages %}{{ m.role }}: {{ m.content | trim }} </s>"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}",
    "whitespace control": "{%- for m in messages -%}\n  [{{ m.role }}]\n\n  {{- m.content -}}\n"
    "{%- endfor -%}",
}
CHATS = {
    "plain": (("user", "Count."), ("assistant", "One, two")),
    "ends in spaces": (("user", "Count."), ("assistant", "One, two  ")),
    "ends in a newline": (("user", "Count."), ("assistant", "One,\n")),
    "begins with spaces": (("user", "Count."), ("assistant", "  One")),
    "occurs earlier": (("user", "One, two"), ("assistant", "One, two"), ("user", "One, two")),
    "is a part of an earlier one": (("user", "One, two, three"), ("assistant", "One")),
    "is empty": (("user", "Count."), ("assistant", "")),
    "is of blanks": (("user", "Count."), ("assistant", "  ")),
    "of the user": (("user", "Cou"),),
    "names transformers' own mark": (("assistant", "CONTINUE_FINAL_MESSAGE_TAG"),),
}


def theirs(source: str, chat: tuple[tuple[str, str], ...], **options: bool) -> str:
    """Render as transformers does."""
    messages = [{"role": role, "content": content} for role, content in chat]
    (text,), _ = render_jinja_template(
        [messages],
        chat_template=source,
        bos_token="<s>",  # noqa: S106 -- a token of the model
        **options,
    )
    return str(text)


def messages_of(chat: tuple[tuple[str, str], ...]) -> list[ChatMessage]:
    """Return the messages of (role, content) pairs."""
    return [ChatMessage(role=role, content=content) for role, content in chat]


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS.keys())
@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_continues_the_final_message_as_transformers_does(
    source: str, chat: tuple[tuple[str, str], ...]
) -> None:
    """One blank or end-of-turn token too many, and the model begins a new sentence or turn."""
    expected = theirs(source, chat, continue_final_message=True)
    template = ChatTemplate(source, {"bos_token": "<s>"})
    assert template.render(messages_of(chat), "inside final message") == expected


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_may_end_behind_the_final_message(source: str) -> None:
    """Without a generation prompt the template decides what stands at the end."""
    chat = CHATS["plain"]
    template = ChatTemplate(source, {"bos_token": "<s>"})
    expected = theirs(source, chat, add_generation_prompt=False)
    assert template.render(messages_of(chat), "final message") == expected


def test_a_continued_prompt_ends_inside_the_content() -> None:
    """The rule itself, by hand."""
    template = ChatTemplate(TEMPLATES["chatml"], {})
    text = template.render(messages_of(CHATS["ends in spaces"]), "inside final message")
    assert text == ("<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\nOne, two  ")


def test_the_end_is_marked_for_nobody_but_us() -> None:
    """A template may print the content twice; the prompt must hold nothing that nobody wrote."""
    source = (
        "{{ messages[-1].content }}/{{ messages[-1].content | trim }}/{{ messages[-1].content }}!"
    )
    chat = messages_of((("assistant", "One "),))
    assert ChatTemplate(source, {}).render(chat, "inside final message") == "One /One /One "


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content.split('</think>')[0] }}{% endfor %}",
        "{{ messages | tojson }}{# content #}",
    ],
)
def test_a_final_message_that_the_template_changes_cannot_go_on(source: str) -> None:
    """Where would its end be? transformers refuses these too."""
    chat = (("user", "Count."), ("assistant", '<think>"x"</think>\nOne'))
    with pytest.raises(ValueError, match="does not appear"):
        theirs(source, chat, continue_final_message=True)
    with pytest.raises(InvalidRequest, match="does not show the last message") as refusal:
        ChatTemplate(source, {}).render(messages_of(chat), "inside final message")
    assert refusal.value.field == "chat"


@pytest.mark.parametrize(
    ("adds", "continues", "end"),
    [
        (None, False, "assistant"),
        (True, False, "assistant"),
        (False, False, "final message"),
        (None, True, "inside final message"),
        (False, True, "inside final message"),
    ],
)
def test_the_fields_of_a_chat_say_where_it_ends(
    adds: bool | None, continues: bool, end: str
) -> None:
    """An absent add_generation_prompt is true, unless the final message is to go on."""
    assert end == chat_end(add_generation_prompt=adds, continue_final_message=continues)


def test_both_ends_at_once_are_refused() -> None:
    """A prompt has one end."""
    with pytest.raises(InvalidRequest, match="at most 1") as refusal:
        chat_end(add_generation_prompt=True, continue_final_message=True)
    assert refusal.value.field == "chat.continue_final_message"
