"""Reference cases of other libraries, and a switch to float64."""

import json

import jax
import numpy as np
import pytest


@pytest.fixture
def x64():
    """Arrays may be float64 inside this test."""
    with jax.enable_x64(True):
        yield


def numbers(value):
    """Nested lists with "NaN", "Infinity" and null as a float64 array; text and dicts stay."""
    words = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf, None: np.nan}
    if isinstance(value, dict):
        return {name: numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        items = [numbers(item) for item in value]
        try:
            return np.array(items, np.float64)
        except (TypeError, ValueError):  # ragged, or text
            return items
    if value is None or (isinstance(value, str) and value in words):
        return words[value]
    return value


@pytest.fixture(scope="session")
def golden(shared):
    """{section: {case id: case}}; the section "base_batch" is {name: array}."""
    data = json.loads((shared / "golden" / "rl_cases.json").read_text())
    cases = {"base_batch": numbers(data["base_batch"])}
    for section, value in data.items():
        if isinstance(value, list):
            cases[section] = {case["id"]: numbers(case) for case in value}
    return cases
