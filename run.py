#!/usr/bin/env python3
"""Set up `.venv` unless it is current, then run something in it. Needs Python 3.11 or newer and nothing more.

    python3 run.py standalone           start the broker (any other command of `geminga` works too)
    python3 run.py pipeline ...         the same for the data pipeline, with Spark (a large download, once)
    python3 run.py test                 install the test tools; lint, type check and test
    python3 run.py test tests/cli -x    only pytest, with its own arguments

What is installed is pinned with hashes in `locks/`. A second run installs nothing: a stamp in `.venv`
remembers the locks that were installed. A `.venv` that is a link is used as it is.

Where a C compiler and Python's headers are, `geminga/loops/loops.c` is compiled into `.venv`, once for each
version of that file. Without it Python does the same, as it does with `GEMINGA_PURE=1`.
"""

import hashlib
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
WINDOWS = os.name == "nt"
VENV_PYTHON = os.path.join(VENV, "Scripts", "python.exe") if WINDOWS else os.path.join(VENV, "bin", "python")
OLDEST = (3, 11)
LOCKS = ("run", "spark", "test")
SIZES = {
    "run": "about 100 MB",
    "spark": "about 1.1 GB on disk, half of it downloaded",
    "test": "about 1.3 GB",
}
PACKAGED = (14, 13, 12, 11)
"""Minor versions for which every package of the locks has a wheel; the first takes least CPU."""
OPTIMISED = """import ensurepip, sys, sysconfig
options = sysconfig.get_config_var("CONFIG_ARGS")
sys.exit(bool(options) and "--enable-optimizations" not in options and sys.base_prefix != "/usr")
"""
"""Code 0 unless built without PGO. Windows keeps no options; a distribution's, in /usr, need not name PGO."""
LARGE = re.compile(r"^(?:Downloading|Using cached) .* \(([\d.]+) MB\)")
LARGE_MB = 20
WORKERS_MAX = 8
"""Each takes up to half a gigabyte."""
LOOPS = os.path.join(ROOT, "geminga", "loops")
COMPILERS = ("cc", "gcc", "clang")
COMPILE_SECONDS_MAX = 5
CHECKS = (
    ("format", ("-m", "ruff", "format", "--quiet", "--check", "--diff", ".")),
    ("lint", ("-m", "ruff", "check", "--quiet", ".")),
    ("types", ("-m", "mypy")),
)


def main(arguments):
    if sys.version_info < OLDEST:
        return run_with_newer_python(arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    if arguments[0] == "test":
        set_up("test")
        compile_loops()
        return test(arguments[1:])
    set_up("spark" if arguments[0] == "pipeline" else "run")
    compile_loops()
    # -P: the directory that the user happens to be in is no place to import from.
    command = [VENV_PYTHON, "-P", "-m", "geminga", *arguments]
    # No `geminga` is on the path of a checkout's user: what a command advises has to begin as this one did.
    os.environ["GEMINGA_COMMAND"] = "{} {}".format("python" if WINDOWS else "python3", quoted(sys.argv[0]))
    if WINDOWS:
        return subprocess.call(command)
    sys.stdout.flush()
    sys.stderr.flush()
    return os.execv(VENV_PYTHON, command)


def quoted(path):
    return subprocess.list2cmdline([path]) if WINDOWS else shlex.quote(path)


def run_with_newer_python(arguments):
    for minor in range(20, OLDEST[1] - 1, -1):
        python = shutil.which(f"python3.{minor}")
        if python:
            return subprocess.call([python, os.path.abspath(__file__), *arguments])
    say(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}.")
    return 2


def set_up(which):
    """Make `.venv` hold what `locks/<which>.txt` says; at once if it does already."""
    if os.path.islink(VENV) and os.path.exists(VENV_PYTHON):
        # Another checkout's: to install into it would turn its `geminga` to this one.
        os.environ["PYTHONPATH"] = ROOT
        return
    # A lock contains those before it, so its stamp stands for them too.
    wanted = stamp(which)
    enough = LOCKS[LOCKS.index(which) :]
    if os.path.exists(VENV_PYTHON) and any(read_stamp(name) == stamp(name) for name in enough):
        return
    started = time.monotonic()
    if not works(VENV_PYTHON):
        say(f"Creating .venv with Python {sys.version.split()[0]} ...")
        create_venv()
        tell_of_faster_python()
    say(f"Installing what locks/{which}.txt names, {SIZES[which]} ...")
    if install(os.path.join(ROOT, "locks", which + ".txt")):
        say("pip could not install the packages (its message is above). Nothing else was changed; try again.")
        sys.exit(1)
    link_package()
    with open(stamp_path(which), "w") as file:
        file.write(wanted)
    say("Ready in %.1f s; from now on this step is skipped." % (time.monotonic() - started))


def compile_loops():
    """Compile the loops in C, unless that was tried before. Silent: without them only speed is missing."""
    if os.path.islink(VENV) or not any(map(shutil.which, COMPILERS)):
        return
    command = [VENV_PYTHON, "-P", os.path.join(LOOPS, "compile.py")]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        with open(os.path.join(LOOPS, "loops.c"), "rb") as file:
            wanted = hashlib.sha256(file.read()).hexdigest()
        if read_stamp("loops") == wanted:
            return
        # Written before: what takes too long is not tried at each start.
        with open(stamp_path("loops"), "w") as file:
            file.write(wanted)
        subprocess.run(command, timeout=COMPILE_SECONDS_MAX, check=False, **silent)
    except (OSError, subprocess.TimeoutExpired):
        pass


def install(lock):
    """What the lock names. Tells what takes long: large downloads, what is built and what is unpacked."""
    with open(lock, encoding="utf-8") as file:
        total = len({line.split("==")[0] for line in file if "==" in line})
    flags = ["--progress-bar", "off", "--disable-pip-version-check", "--require-hashes"]
    command = [VENV_PYTHON, "-m", "pip", "install", *flags, "-r", lock]
    found = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as pip:
        for line in pip.stdout:
            found += line.startswith("Collecting ")
            if is_worth_telling(line.strip()):
                say(f"  {found} of {total}: {shortened(line.strip())}")
    return pip.returncode


def is_worth_telling(line):
    """Of pip's lines: those before a wait."""
    if line.startswith(("Building wheels", "Installing collected")):
        return True
    size = LARGE.search(line)
    return size is not None and float(size[1]) >= LARGE_MB


def shortened(line):
    return line if len(line) < 100 else line[:96] + " ..."


def create_venv():
    command = [sys.executable, "-m", "venv", "--clear", VENV]
    if subprocess.call(command):
        say("This Python cannot create virtual environments (Debian needs the package python3-venv).")
        sys.exit(1)


def tell_of_faster_python():
    if is_optimised(sys.executable):
        return
    said = "This Python is built without profile-guided optimisation, which saves 5 to 8 % of the CPU."
    # A shim of pyenv on the path hides the system's Python of the same version.
    found = [shutil.which(f"python3.{minor}", path=path) for path in (None, "/usr/bin") for minor in PACKAGED]
    better = next((python for python in found if python and is_optimised(python)), None)
    if better:
        remove = "rmdir /s .venv" if WINDOWS else "rm -r " + quoted(VENV)
        said += f" {better} is optimised; to use it: {remove}; {quoted(better)} {quoted(sys.argv[0])} ..."
    say(said)


def is_optimised(python):
    nowhere = subprocess.DEVNULL
    return subprocess.call([python, "-c", OPTIMISED], stdout=nowhere, stderr=nowhere) == 0


def link_package():
    """Put this directory on the environment's path, and a `geminga` command beside its Python.

    A plain path file costs nothing at start-up; the import hook of an editable install does.
    """
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.check_output([VENV_PYTHON, "-c", query], text=True).strip()
    with open(os.path.join(packages, "geminga.pth"), "w", encoding="utf-8") as file:
        file.write(ROOT + "\n")
    subprocess.call([VENV_PYTHON, "-m", "compileall", "-q", os.path.join(ROOT, "geminga")])
    if not WINDOWS:
        script = os.path.join(VENV, "bin", "geminga")
        with open(script, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec "{VENV_PYTHON}" -P -m geminga "$@"\n')
        os.chmod(script, 0o755)


def test(arguments):
    if arguments:
        return subprocess.call([VENV_PYTHON, "-m", "pytest", *arguments], cwd=ROOT)
    failed = []
    for name, command in CHECKS:
        started = time.monotonic()
        if subprocess.call([VENV_PYTHON, *list(command)], cwd=ROOT):
            failed.append(name)
        say("{}: {}, {:.1f} s".format(name, "FAILED" if name in failed else "ok", time.monotonic() - started))
    # Many tests wait (for a disk, a broker, Spark), so one worker more than processors pays off.
    workers = ["-n", str(min(processors() + 1, WORKERS_MAX))]
    seed = f"--randomly-seed={random.randrange(1 << 32)}"
    say(f"pytest: each run has an order of its own; this one again with {seed}")
    if subprocess.call([VENV_PYTHON, "-m", "pytest", "-q", *workers, seed], cwd=ROOT):
        failed.append("tests")
    if failed:
        say("failed: " + ", ".join(failed))
    return 1 if failed else 0


def processors():
    """Those that this process may use; a container often has fewer than its machine."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def works(python):
    try:
        query = f"import sys, pip; sys.exit(sys.version_info < {OLDEST!r})"
        return subprocess.call([python, "-c", query], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def stamp(which):
    digest = hashlib.sha256(ROOT.encode())
    for name in ("pyproject.toml", os.path.join("locks", which + ".txt"), "run.py"):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def stamp_path(which):
    return os.path.join(VENV, f"installed-{which}.stamp")


def read_stamp(which):
    try:
        with open(stamp_path(which)) as file:
            return file.read()
    except OSError:
        return ""


def say(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
