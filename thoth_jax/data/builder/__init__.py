"""Structured procedures -> the bundled corpus: records, items of eight types, sub-tasks, drills. No model is asked.

source.py      YAML -> procedures        quantities.py  numbers and units, checked
draw.py        one sound variant         argue.py       think and note blocks
comprehension.py, planning.py, remedies.py, scaling.py   the task types
items.py       what items share          subtasks.py, drills.py, metadata.py   the other texts
splits.py      who trains on what        corpus.py      all of it; redrawn items without end
bundle.py      the shipped files         sketcher.py    natural-language step -> action, objects, parameters
"""

from thoth_jax.data.builder.corpus import Corpus, corpus_of, redrawn_items, shipped_items
from thoth_jax.data.builder.drills import drills
from thoth_jax.data.builder.source import read_sources

__all__ = ["Corpus", "corpus_of", "drills", "read_sources", "redrawn_items", "shipped_items"]
