"""A pure-JAX post-training stack for reasoning models, with the Thoth protocol task."""
