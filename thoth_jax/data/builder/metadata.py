"""Structured procedures -> metadata records of the paper's corpus, for stage pretrain."""

from thoth_jax.data.builder.draw import Variant
from thoth_jax.data.builder.source import SourceProtocol


def record(protocol: SourceProtocol) -> dict[str, str]:
    """The record of the standard variant: exp_name, abstract, materials, equipments, procedures, notes."""
    lines = Variant(protocol).lines(protocol.steps)
    return {
        "exp_name": protocol.name,
        "abstract": protocol.abstract,
        "materials": "; ".join(protocol.materials),
        "equipments": "; ".join(protocol.equipments),
        "procedures": "\n".join(f"{number}. {line.prose}" for number, line in enumerate(lines, 1)),
        "notes": " ".join(protocol.notes),
    }
