"""Conversations as text in Qwen3's chat format (ChatML with think blocks), written from its rules."""

from collections.abc import Mapping, Sequence

from thoth_jax.errors import InputError

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
ROLES = ("system", "user", "assistant")


def render(
    messages: Sequence[Mapping[str, str]], generation_prompt: bool = True, enable_thinking: bool = True
) -> list[tuple[str, bool]]:
    """A conversation as pieces (text, is a role marker); the text of all pieces joined is the rendered chat.

    Answers before the last user turn lose their think block; an answer after it has one, empty if need be.

    Args:
      messages: turns {"role": "system" | "user" | "assistant", "content": str}.
      generation_prompt: end with the opening of an assistant turn.
      enable_thinking: False: that opening holds an empty think block, so that the model answers at once.

    Raises:
      InputError: no messages, another role, content that is not text, or tool calls (not supported).
    """
    _check(messages)
    queries = [index for index, message in enumerate(messages) if _is_query(message)]
    last_query = queries[-1] if queries else len(messages) - 1
    pieces = []
    for index, message in enumerate(messages):
        content = message["content"]
        if message["role"] == "assistant":
            thought, content = _split_thought(content)
            last = index == len(messages) - 1
            if index > last_query and (last or thought):
                content = f"<think>\n{thought.strip(chr(10))}\n</think>\n\n{content.lstrip(chr(10))}"
        pieces += [(IM_START, True), (f"{message['role']}\n{content}", False), (IM_END, True), ("\n", False)]
    if generation_prompt:
        opening = "assistant\n" if enable_thinking else "assistant\n<think>\n\n</think>\n\n"
        pieces += [(IM_START, True), (opening, False)]
    return pieces


def _check(messages) -> None:
    if not messages:
        raise InputError("messages: a conversation needs at least one message")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message.get("role") not in ROLES:
            raise InputError(
                f"{where}.role: {message.get('role')!r} is not supported; it must be one of {', '.join(ROLES)}"
            )
        if not isinstance(message.get("content"), str):
            raise InputError(f"{where}.content: must be text, not {type(message.get('content')).__name__}")
        if message.get("tool_calls"):
            raise InputError(f"{where}.tool_calls: tool calls are not supported")


def _is_query(message) -> bool:
    content = message["content"]
    response = content.startswith("<tool_response>") and content.endswith("</tool_response>")
    return message["role"] == "user" and not response


def _split_thought(content: str) -> tuple[str, str]:
    """(text of the think block, what follows its last end tag); ("", content) where there is none."""
    if "</think>" not in content:
        return "", content
    thought = content.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
    return thought, content.split("</think>")[-1].lstrip("\n")
