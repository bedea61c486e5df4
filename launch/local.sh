#!/usr/bin/env bash
# Train on this machine. Everything below can be set from the environment; arguments go on to `thoth train`:
#
#   launch/local.sh --config.num_steps=20
#   CONFIG=configs/thoth/tiny_sft.py NUM_DEVICES=8 launch/local.sh
#   launch/local.sh --dry-run                      # print the command only
#
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

CONFIG=${CONFIG:-$root/configs/thoth/tiny_pretrain.py}            # what to train
NUM_DEVICES=${NUM_DEVICES:-}                                      # virtual CPU devices; empty: the real devices
MEM_FRACTION=${MEM_FRACTION:-0.9}                                 # share of an accelerator's memory taken at the start
CACHE_DIR=${CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/thoth_jax} # compiled programs, kept between runs
MAX_RESTARTS=${MAX_RESTARTS:-100}                                 # runs after a preemption (exit code 75)

# Outside an activated environment, the one that make created.
command -v thoth >/dev/null || PATH=$root/.venv/bin:$PATH

dry_run=
arguments=()
for argument in "$@"; do
  if [ "$argument" = --dry-run ]; then dry_run=yes; else arguments+=("$argument"); fi
done

export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$CACHE_DIR}
export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-$MEM_FRACTION}
shown=(JAX_COMPILATION_CACHE_DIR XLA_PYTHON_CLIENT_MEM_FRACTION)
if [ -n "$NUM_DEVICES" ]; then
  export JAX_PLATFORMS=cpu
  export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_force_host_platform_device_count=$NUM_DEVICES"
  shown+=(JAX_PLATFORMS XLA_FLAGS)
fi
command=(thoth train "--config=$CONFIG" ${arguments[@]+"${arguments[@]}"})

if [ -n "$dry_run" ]; then
  for name in "${shown[@]}"; do printf '%s=%q ' "$name" "${!name}"; done
  printf '%q ' "${command[@]}"
  printf '\n'
  exit 0
fi

# A signal is passed on once, so that the run saves and stops; it is not started again then. Job control gives the run
# a process group of its own, or Ctrl-C would reach it twice.
set -m
child= stopped= interrupted=
pass_on() { stopped=yes interrupted=yes; [ -z "$child" ] || kill -s "$1" "$child" 2>/dev/null || true; }
trap 'pass_on INT' INT
trap 'pass_on TERM' TERM

# 75 means: preempted, a checkpoint is saved. The same command continues from it.
for ((restart = 0; ; restart++)); do
  [ -z "$stopped" ] || exit 75
  "${command[@]}" &
  child=$!
  interrupted=yes
  while [ -n "$interrupted" ]; do
    interrupted= status=0
    wait "$child" || status=$?
  done
  if [ "$status" -ne 75 ] || [ -n "$stopped" ]; then exit "$status"; fi
  if [ "$restart" -ge "$MAX_RESTARTS" ]; then break; fi
  echo "preempted; starting again ($((restart + 1)) of at most $MAX_RESTARTS)" >&2
done
echo "preempted more than $MAX_RESTARTS times; run the same command again to go on" >&2
exit 75
