#!/usr/bin/env bash
# Runs a training module for hours beside other work: in_background.sh MODULE DIRECTORY ARGUMENTS...
# What it prints goes to DIRECTORY/stdout.txt.
# Keeping freed memory in the process saves a sixth of a step: no pages to map and clear anew.
# Threads that sleep while they wait take 0.4 of the processor time beside other busy processes.
# OpenBLAS, which the package loads for MLX, would also do PyTorch's products: in threads of its own that
# wait for PyTorch's, or in one. PyTorch keeps to its own library where it is imported first.
set -eu
module=$1 directory=$2
shift 2
export OMP_WAIT_POLICY=passive
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 MALLOC_TOP_PAD_=268435456
mkdir -p "$directory"
nohup setsid nice -n "${NICE:-10}" "${PYTHON:-python}" -c "import torch, runpy
runpy.run_module('$module', run_name='__main__')" "$@" >>"$directory/stdout.txt" 2>&1 </dev/null &
echo "training in the background, log in $directory/stdout.txt"
