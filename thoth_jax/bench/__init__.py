"""Benchmarks: each beside a peer in the same run, interleaved, as one JSON object."""
