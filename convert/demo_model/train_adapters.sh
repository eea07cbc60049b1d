#!/usr/bin/env bash
# Trains streams and adapters of the demonstration model in the background; the same command resumes it.
# Parts come as arguments, see train_adapters.py; losses are in WORK/PART/log.jsonl.
set -eu
bash "$(dirname "$0")/in_background.sh" specstream_mlx.convert.demo_model.train_adapters "${WORK:=runs/adapters}" \
    --work "$WORK" "$@"
