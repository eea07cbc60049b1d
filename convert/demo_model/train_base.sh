#!/usr/bin/env bash
# Trains the demonstration base model in the background; the same command resumes it.
# Keeping freed memory in the process saves a sixth of a step: no pages to map and clear anew.
# Threads that sleep while they wait take 0.4 of the processor time beside other busy processes.
# OpenBLAS, which the package loads, must start no threads of its own below those of PyTorch.
set -eu
export OMP_WAIT_POLICY=passive OPENBLAS_NUM_THREADS=1
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 MALLOC_TOP_PAD_=268435456
mkdir -p "${OUTPUT:=runs/base}"
nohup setsid nice -n "${NICE:-10}" "${PYTHON:-python}" -m specstream_mlx.convert.demo_model.train_base \
    --output "$OUTPUT" "$@" >>"$OUTPUT/stdout.txt" 2>&1 </dev/null &
echo "training in the background, log in $OUTPUT/log.jsonl"
