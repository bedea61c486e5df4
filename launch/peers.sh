#!/usr/bin/env bash
# Environments for the peers of `thoth bench`, one each: they cannot share one.
#
#   launch/peers.sh DIR      makes DIR/tunix and DIR/torch (2 to 6 GB of downloads), and prints the command that uses them
#   PYTHON=python3.12        the Python of both (3.11 to 3.13)
set -euo pipefail

if [ $# -ne 1 ]; then
    echo "usage: launch/peers.sh DIR" >&2
    exit 2
fi
mkdir -p "$1"
dir=$(cd "$1" && pwd)
python=${PYTHON:-python3}
[ -x "$dir/tunix/bin/python" ] || "$python" -m venv "$dir/tunix"
"$dir/tunix/bin/python" -m pip install --quiet google-tunix
[ -x "$dir/torch/bin/python" ] || "$python" -m venv "$dir/torch"
"$dir/torch/bin/python" -m pip install --quiet torch transformers accelerate trl peft
echo "thoth bench rollout --peer-python $dir/tunix/bin/python --peer-python $dir/torch/bin/python"
