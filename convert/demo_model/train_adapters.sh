#!/usr/bin/env bash
# Trains streams and adapters of the demonstration model in the background; the same command resumes it.
# Parts come as arguments, see train_adapters.py; train_base.sh says why the environment is as it is.
set -eu
export OMP_WAIT_POLICY=passive
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 MALLOC_TOP_PAD_=268435456
mkdir -p "${WORK:=runs/adapters}"
nohup setsid nice -n "${NICE:-10}" "${PYTHON:-python}" -c "import torch, runpy
runpy.run_module('specstream_mlx.convert.demo_model.train_adapters', run_name='__main__')" \
    --work "$WORK" "$@" >>"$WORK/stdout.txt" 2>&1 </dev/null &
echo "training in the background, log in $WORK/stdout.txt and $WORK/PART/log.jsonl"
