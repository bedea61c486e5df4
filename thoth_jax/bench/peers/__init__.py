"""Contenders of benchmarks, each driven in a process of its own: they cannot share an environment with each other."""
