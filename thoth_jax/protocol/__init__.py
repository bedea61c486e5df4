"""The Sketch-and-Fill protocol format: grammar, rows of data files, prompts. Pure Python."""

from thoth_jax.protocol.grammar import Parsed, Sketch, Step, parse, parse_key_block, render
from thoth_jax.protocol.prompts import SYSTEM_PROMPT, messages, user_prompt
from thoth_jax.protocol.schema import Protocol, ProtocolItem, read_documents, read_items, read_rows

__all__ = [
    "SYSTEM_PROMPT",
    "Parsed",
    "Protocol",
    "ProtocolItem",
    "Sketch",
    "Step",
    "messages",
    "parse",
    "parse_key_block",
    "read_documents",
    "read_items",
    "read_rows",
    "render",
    "user_prompt",
]
