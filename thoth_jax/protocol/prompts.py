"""What the policy is asked: the system turn, the user turn, the list of allowed actions."""

from collections.abc import Iterable

from thoth_jax.protocol.schema import ProtocolItem

SYSTEM_PROMPT = (
    "You plan laboratory work. Answer with four tagged blocks, each once, in this order and with one blank line "
    "between them. <think>: why the plan works, in your own reasoning. <key>: the plan as data, one line for each "
    'step, written Step 1: {"action": "verb", "objects": ["noun phrase"], "parameters": ["setting"]}, in lower case '
    "and in as few words as possible. <orc>: the same steps under the same numbers, each as one full sentence that "
    "uses every word of its key line. <note>: the hazards and how to handle them. Write nothing outside the blocks."
)

_REQUEST = "Write a protocol that answers this."


def action_sentence(actions: Iterable[str]) -> str:
    """The sentence that limits a protocol to a list of actions, lower-cased, in the order given."""
    quoted = ", ".join(f'"{action.strip().lower()}"' for action in actions)
    return f"Every step must use one of these actions: {quoted}."


def user_prompt(question: str, actions: Iterable[str] | None = None) -> str:
    """The user turn: the question, the request for a protocol, and the allowed actions on a line of their own."""
    prompt = f"{question.strip()} {_REQUEST}"
    return prompt if not actions else f"{prompt}\n{action_sentence(actions)}"


def messages(item: ProtocolItem) -> list[dict[str, str]]:
    """The chat prompt of an item: its own turns where the file gives them in full, ours otherwise."""
    user = item.question if item.verbatim else user_prompt(item.question, item.actions)
    return [{"role": "system", "content": item.system or SYSTEM_PROMPT}, {"role": "user", "content": user}]
