#!/usr/bin/env bash
# Trains the demonstration base model in the background; the same command resumes it.
# Losses are in OUTPUT/log.jsonl.
set -eu
export OPENBLAS_NUM_THREADS=1
bash "$(dirname "$0")/in_background.sh" specstream_mlx.convert.demo_model.train_base "${OUTPUT:=runs/base}" \
    --output "$OUTPUT" "$@"
