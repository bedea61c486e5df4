"""Verifiable process rewards on the thoth_jax stack: risk of bias of clinical trials as a second domain."""
