"""Installs thoth_jax and vprm_jax with the commands `thoth` and `vprm`."""

from setuptools import find_packages, setup

setup(
    name="thoth-jax",
    version="0.1.0",
    description="A pure-JAX post-training stack (LoRA pretraining, SFT, GRPO/DAPO) with verifiable rewards",
    license="MIT",
    license_files=["LICENSE"],
    packages=find_packages(include=["thoth_jax", "thoth_jax.*", "vprm_jax", "vprm_jax.*"]),
    package_data={"": ["*.json", "*.jsonl", "*.txt", "*.model", "*.html", "*.yaml"]},
    python_requires=">=3.11",
    install_requires=[
        "jax>=0.10",
        "flax>=0.12",
        "optax>=0.2.5",
        "orbax-checkpoint>=0.11.30",
        "transformers>=5.0",
        "datasets>=4.0",
        "numpy>=2.0",
        "scipy>=1.11",
        "sentencepiece>=0.2",
        "ml-collections>=1.0",
        "safetensors>=0.8",
        "tokenizers>=0.22",
        "snowballstemmer>=2.2",
        "tensorboardX>=2.6",
        "tqdm>=4.66",
        "etils[epath]>=1.10",
        "pyyaml>=6.0",
        "absl-py>=2.0",
    ],
    extras_require={
        "gpu": ["jax[cuda13]>=0.10"],
        "tpu": ["jax[tpu]>=0.10"],
        "eval": ["sacrebleu>=2.4", "rouge-score>=0.1.2", "nltk>=3.9", "keybert>=0.8.5", "bert-score>=0.3.13"],
        "dev": [
            "pytest>=8.0",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "ruff>=0.9",
            "sacrebleu>=2.4",
            "rouge-score>=0.1.2",
            "nltk>=3.9",
        ],
    },
    entry_points={"console_scripts": ["thoth=thoth_jax.cli:main", "vprm=vprm_jax.cli:main"]},
)
