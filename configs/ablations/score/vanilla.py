"""The "Vanilla" reward at this scale: BLEU-AVG and ROUGE-L of the orc, no gate (needs the extra eval).

The paper adds BERTScore, whose model alone is a few hundred times the size of this policy, and does not say how the
three are combined; here it is their mean."""

from thoth_jax.config import beside, from_file


def get_config():
    config = from_file(beside(__file__, "thoth.py"))
    config.run_dir = "runs/ablations/score/vanilla"
    config.rewards = ({"fn": "thoth_jax.rewards.lexical:lexical_reward", "kwargs": {"bleu": 0.5, "rouge": 0.5}},)
    return config
