"""Conversations as text in Qwen3's chat format (ChatML with think blocks and tools), written from its rules."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from thoth_jax.errors import InputError

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
ROLES = ("system", "user", "assistant", "tool")

# What the model was trained to see; not a word of it may change.
_TOOLS_BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


def render(
    messages: Sequence[Mapping[str, Any]],
    generation_prompt: bool = True,
    enable_thinking: bool = True,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[tuple[str, bool]]:
    """A conversation as pieces (text, is a role marker); the text of all pieces joined is the rendered chat.

    Answers before the last user turn lose their think block; an answer after it has one, empty if need be.

    Args:
      messages: turns {"role": "system" | "user" | "assistant" | "tool", "content": str}. An assistant's may have
        "tool_calls" [{"function": {"name", "arguments": object or JSON text}}] and "reasoning_content", its think block
        where the content has none.
      generation_prompt: end with the opening of an assistant turn.
      enable_thinking: False: that opening holds an empty think block, so that the model answers at once.
      tools: JSON objects that describe functions, shown in the system turn.

    Raises:
      InputError: no messages, another role, content that is not text, a broken tool call.
    """
    _check(messages)
    queries = [index for index, message in enumerate(messages) if _is_query(message)]
    last_query = queries[-1] if queries else len(messages) - 1
    pieces = _tool_turn(messages[0], tools) if tools else []
    for index, message in enumerate(messages):
        role, content = message["role"], message.get("content") or ""
        if tools and index == 0 and role == "system":
            continue
        if role == "tool":
            pieces += _tool_response(messages, index)
            continue
        if role == "assistant":
            thought, content = _split_thought(content, message.get("reasoning_content"))
            last = index == len(messages) - 1
            if index > last_query and (last or thought):
                content = f"<think>\n{thought.strip(chr(10))}\n</think>\n\n{content.lstrip(chr(10))}"
            content += _tool_calls(message.get("tool_calls") or (), bool(content))
        pieces += [(IM_START, True), (f"{role}\n{content}", False), (IM_END, True), ("\n", False)]
    if generation_prompt:
        opening = "assistant\n" if enable_thinking else "assistant\n<think>\n\n</think>\n\n"
        pieces += [(IM_START, True), (opening, False)]
    return _joined(pieces)


def _joined(pieces: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Texts that follow one another as one piece, since a tokenizer may join their ends."""
    groups = itertools.groupby(pieces, key=lambda piece: piece[1])
    joined = []
    for is_marker, group in groups:
        texts = [text for text, _ in group]
        joined += [(text, True) for text in texts] if is_marker else [("".join(texts), False)]
    return joined


def _tool_turn(first: Mapping[str, Any], tools) -> list[tuple[str, bool]]:
    own = f"{first['content']}\n\n" if first["role"] == "system" else ""
    shown = "".join(f"\n{_json(tool)}" for tool in tools)
    return [
        (IM_START, True),
        (f"system\n{own}{_TOOLS_BEFORE}{shown}{_TOOLS_AFTER}", False),
        (IM_END, True),
        ("\n", False),
    ]


def _tool_response(messages, index: int) -> list[tuple[str, bool]]:
    """Answers of tools that follow one another share a user turn."""
    text = f"\n<tool_response>\n{messages[index]['content']}\n</tool_response>"
    before = index > 0 and messages[index - 1]["role"] == "tool"
    after = index + 1 < len(messages) and messages[index + 1]["role"] == "tool"
    pieces = [(text, False)] if before else [(IM_START, True), (f"user{text}", False)]
    return pieces if after else [*pieces, (IM_END, True), ("\n", False)]


def _tool_calls(calls, after_content: bool) -> str:
    parts = []
    for call in calls:
        call = call.get("function") or call
        arguments = call["arguments"]
        arguments = arguments if isinstance(arguments, str) else _json(arguments)
        lead = "\n" if parts or after_content else ""
        parts.append(f'{lead}<tool_call>\n{{"name": "{call["name"]}", "arguments": {arguments}}}\n</tool_call>')
    return "".join(parts)


def _json(value) -> str:
    return json.dumps(value, ensure_ascii=False)


def _check(messages) -> None:
    if not messages:
        raise InputError("messages: a conversation needs at least one message")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
        if role not in ROLES:
            raise InputError(f"{where}.role: {role!r} is not supported; it must be one of {', '.join(ROLES)}")
        if calls and role != "assistant":
            raise InputError(f"{where}.tool_calls: only an assistant calls tools")
        for number, call in enumerate(calls or ()):
            call = (call.get("function") or call) if isinstance(call, Mapping) else {}
            if not isinstance(call.get("name"), str) or "arguments" not in call:
                raise InputError(f"{where}.tool_calls[{number}]: must have a name and arguments")
        if not isinstance(content, str) and not (calls and content is None):
            raise InputError(f"{where}.content: must be text, not {type(content).__name__}")


def _is_query(message) -> bool:
    content = message.get("content") or ""
    response = content.startswith("<tool_response>") and content.endswith("</tool_response>")
    return message["role"] == "user" and not response


def _split_thought(content: str, reasoning: str | None) -> tuple[str, str]:
    """(text of the think block, what follows its last end tag); ("", content) where there is none."""
    if isinstance(reasoning, str):
        return reasoning, content
    if "</think>" not in content:
        return "", content
    thought = content.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
    return thought, content.split("</think>")[-1].lstrip("\n")
