"""Numbers and units of the sources: what a bench scientist would believe, and the list of what was checked."""

import collections
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from thoth_jax.data.builder.source import SourceProtocol, SourceStep
from thoth_jax.errors import InputError

# Unit -> lowest and highest value that is believed in a step of a laboratory protocol.
RANGES: dict[str, tuple[float, float]] = {
    "°C": (-196, 135),
    "x g": (20, 250000),
    "rpm": (1, 20000),
    "s": (0.1, 600),
    "min": (0.25, 360),
    "h": (0.25, 168),
    "days": (1, 60),
    "weeks": (1, 30),
    "µl": (0.1, 5000),
    "ml": (0.01, 5000),
    "l": (0.1, 20),
    "nl": (0.1, 1000),
    "pg": (0.1, 1000),
    "ng": (0.1, 5000),
    "µg": (0.01, 5000),
    "mg": (0.01, 5000),
    "g": (0.005, 2000),
    "M": (0.001, 18),
    "mM": (0.01, 1500),
    "µM": (0.001, 2000),
    "nM": (0.01, 5000),
    "pM": (0.1, 5000),
    "%": (0.001, 100),
    "pH": (1, 14),
    "V": (0.1, 5000),
    "kV": (0.1, 50),
    "mA": (0.1, 2000),
    "Hz": (0.01, 1000),
    "W": (0.1, 1000),
    "nm": (0.1, 2000),
    "µm": (0.1, 1000),
    "mm": (0.05, 500),
    "cm": (0.1, 200),
    "kb": (0.05, 500),
    "bp": (10, 50000),
    "times": (1, 10000),
    "cycles": (1, 60),
    "volume": (0.05, 20),
    "volumes": (0.05, 40),
    "U": (0.1, 10000),
    "U/µl": (0.001, 100),
    "U/ml": (0.01, 5000),
    "ng/µl": (0.01, 2000),
    "ng/ml": (0.01, 5000),
    "µg/ml": (0.01, 5000),
    "mg/ml": (0.001, 500),
    "g/l": (0.01, 500),
    "µg/µl": (0.001, 50),
    "ml/min": (0.01, 50),
    "mm/s": (0.01, 100),
    "frames/s": (0.1, 1000),
    "kPa": (0.1, 500),
    "MOhm": (0.1, 100),
    "GOhm": (0.1, 100),
    "dpi": (50, 2400),
    "pmol": (0.01, 1000),
    "OD": (0.005, 20),
    "OD600": (0.005, 20),
    "MOI": (0.001, 1000),
}
_LEADING = ("pH", "MOI", "OD600", "OD")  # these stand before their number
_UNITS = "|".join(sorted((re.escape(unit) for unit in RANGES if unit not in _LEADING), key=len, reverse=True))
_AMOUNT = re.compile(
    rf"(?:(?P<before>{'|'.join(_LEADING)}) (?P<value>[\d.]+))|(?P<number>-?\d+(?:\.\d+)?) ?(?P<unit>{_UNITS})(?![\w/])"
)


class Checked(NamedTuple):
    """A number with a unit, and where it stands."""

    unit: str
    value: float
    protocol: str
    step: str
    text: str


def steps_of(protocol: SourceProtocol) -> list[SourceStep]:
    """The steps of the procedure and of all remedies."""
    remedies = [*protocol.faults, *protocol.limits, *protocol.safety]
    return [*protocol.steps, *(step for remedy in remedies for step in remedy.fix)]


def amounts(protocol: SourceProtocol) -> Iterator[Checked]:
    """Every number with a unit in the parameters and objects of a protocol, all alternatives included."""
    for step in steps_of(protocol):
        where = step.id or step.action
        texts = [q.template.format(choice) for q in step.parameters for choice in q.choices or ("",)]
        for text in (*step.objects, *texts):
            for match in _AMOUNT.finditer(text):
                unit = match["before"] or match["unit"]
                yield Checked(unit, float(match["value"] or match["number"]), protocol.name, where, text)


def check(protocols: Sequence[SourceProtocol]) -> list[Checked]:
    """All amounts.

    Raises:
      InputError: one is outside the range of its unit.
    """
    found = [amount for protocol in protocols for amount in amounts(protocol)]
    for amount in found:
        low, high = RANGES[amount.unit]
        if not low <= amount.value <= high:
            raise InputError(
                f"{amount.protocol}: step {amount.step}: {amount.text!r}: "
                f"not between {low:g} and {high:g} {amount.unit}"
            )
    return found


def report(protocols: Sequence[SourceProtocol]) -> str:
    """The checked numbers as text: one line for each unit, then one for each protocol."""
    by_unit, by_protocol = collections.defaultdict(list), collections.defaultdict(list)
    for amount in check(protocols):
        by_unit[amount.unit].append(amount)
        by_protocol[amount.protocol].append(amount)
    total = sum(map(len, by_unit.values()))
    lines = [
        f"{total} numbers with units in the steps of {len(protocols)} protocols, alternatives included; each lies in",
        "the range of its unit. unit: count, lowest and highest found, range believed.",
        "",
    ]
    for unit in RANGES:
        if found := by_unit.get(unit):
            values = [amount.value for amount in found]
            low, high = RANGES[unit]
            lines.append(f"{unit}: {len(found)}, {min(values):g} to {max(values):g}, believed {low:g} to {high:g}")
    for name, found in by_protocol.items():
        lines += ["", name]
        for step, group in _grouped(found):
            lines.append(f"  {step}: {'; '.join(dict.fromkeys(amount.text for amount in group))}")
    return "\n".join(lines) + "\n"


def _grouped(found: Sequence[Checked]) -> list[tuple[str, list[Checked]]]:
    groups: dict[str, list[Checked]] = {}
    for amount in found:
        groups.setdefault(amount.step, []).append(amount)
    return list(groups.items())
