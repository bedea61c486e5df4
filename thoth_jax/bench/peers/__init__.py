"""Peers, each driven in a process of its own: they cannot share an environment with each other or with us.

The scripts of this package are run by the peer's Python and import nothing of ours. `serve.py` reads one request per
line of stdin and writes one answer per line of stdout, both JSON; `peer.py` is our end of that pipe.
"""
