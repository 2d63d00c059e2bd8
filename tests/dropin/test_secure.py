"""Programs with more rights than their caller: what the caller states in the environment does not decide what they execute."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from anynpu.dropin.environment import SETTINGS, library_folder, prefix, remember_python, settings_file

from .conftest import Models
from .running import build, clean_environment, run

NATIVE = Path(__file__).parents[2] / "src" / "anynpu" / "dropin" / "native"
NOBODY = 65534


def settings_of(program: Path, **variables: str) -> dict[str, str]:
    lines = run([program], clean_environment(**variables)).stdout.splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The program that prints its settings, with a Python that nobody else can change."""
    for name in ("bin", "lib", "site"):
        (tmp_path / name).mkdir(mode=0o755)
    (tmp_path / "bin" / "python3.11").touch(0o755)
    (tmp_path / "lib" / "libpython3.11.so.1.0").touch(0o644)
    lines = (
        f"python = {tmp_path}/bin/python3.11",
        f"libpython = {tmp_path}/lib/libpython3.11.so.1.0",
        "version = 3.11",
        f"site = {tmp_path}/site",
    )
    (tmp_path / SETTINGS).write_text("\n".join(lines) + "\n")
    (tmp_path / SETTINGS).chmod(0o644)
    sources = [str(NATIVE / "settings.c"), str(NATIVE / "secure.c")]
    return build("settings.c", tmp_path / "settings", *sources, "-DANYNPU_TEST_SECURE", library=None)


def test_the_environment_counts_for_nothing(installed: Path) -> None:
    found = settings_of(
        installed, ANYNPU_PYTHON="/evil/python3", ANYNPU_LIBPYTHON="/evil/lib.so", ANYNPU_SITE="/evil/site", PATH="/evil"
    )
    folder = installed.parent
    assert found == {
        "python": f"{folder}/bin/python3.11",
        "libpython": f"{folder}/lib/libpython3.11.so.1.0",
        "site": f"{folder}/site",
        "version": "3.11",
        "untrusted": "",
    }


@pytest.mark.parametrize("place", ["bin/python3.11", "bin", "lib/libpython3.11.so.1.0", "lib", "site"])
@pytest.mark.parametrize("mode", [0o020, 0o002], ids=["group", "others"])
def test_what_others_can_write_is_not_used(installed: Path, place: str, mode: int) -> None:
    changed = installed.parent / place
    changed.chmod(stat.S_IMODE(changed.stat().st_mode) | mode)
    assert settings_of(installed)["untrusted"].startswith(str(installed.parent))


def test_a_settings_file_that_others_can_write_is_not_read(installed: Path) -> None:
    (installed.parent / SETTINGS).chmod(0o646)
    found = settings_of(installed)
    assert (found["python"], found["libpython"]) == ("", "")


def test_a_name_that_the_system_would_search_for_is_not_used(installed: Path) -> None:
    settings = installed.parent / SETTINGS
    text = settings.read_text()
    settings.write_text(text.replace(f"libpython = {installed.parent}/lib/", "libpython = "))
    assert settings_of(installed)["untrusted"] == "libpython3.11.so.1.0"


def test_a_link_is_judged_by_what_it_leads_to(installed: Path) -> None:
    library = installed.parent / "lib" / "libpython3.11.so.1.0"
    target = installed.parent / "open"
    target.mkdir()
    target.chmod(0o777)
    library.rename(target / "real.so")
    library.symlink_to(target / "real.so")
    assert settings_of(installed)["untrusted"] == str(library)


# --- a program that really has more rights


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of root that everybody may look into, and whose files may change the user."""
    if os.getuid() != 0:
        pytest.skip("only root can make a set-user-ID program of root")
    path = Path(tempfile.mkdtemp(prefix="anynpu-secure-"))
    try:
        if os.statvfs(path).f_flag & os.ST_NOSUID:
            pytest.skip(f"{path} is on a file system that ignores set-user-ID")
        path.chmod(0o755)
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture
def program(folder: Path, models: Models) -> Path:
    """A set-user-ID program that runs a model, with libraries and settings in a folder of root."""
    libraries = folder / "lib"
    shutil.copytree(library_folder(), libraries)
    shutil.copy(remember_python(), libraries / SETTINGS)
    (libraries / SETTINGS).chmod(0o644)
    shutil.copy(models.small, folder / "small.rknn")
    built = build("infer.c", folder / "infer", f"-L{libraries}", f"-Wl,-rpath,{libraries}")
    built.chmod(0o4755)
    return built


def as_nobody(program: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, program.parent / "small.rknn", "1"],
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
    )


def hostile(folder: Path) -> dict[str, str]:
    """All that a caller could try, and each of it leaves a mark if it works."""
    library = build("takeover.c", folder / "takeover.so", "-shared", "-fPIC", f'-DMARK="{folder}/taken"', library=None)
    site = folder / "site"
    (site / "anynpu").mkdir(parents=True)
    (site / "anynpu" / "__init__.py").write_text(f"open('{folder}/taken', 'w')\n")
    (site / "sitecustomize.py").write_text(f"open('{folder}/taken', 'w')\n")
    return {
        "ANYNPU_LIBPYTHON": str(library),
        "ANYNPU_PYTHON": str(folder / "python3"),
        "ANYNPU_SITE": str(site),
        "ANYNPU_CALL_LOG": str(folder / "taken"),
        "ANYNPU_TRACE": str(folder / "taken"),
        "ANYNPU_BOARD_ROOT": str(folder),
        "PYTHONPATH": str(site),
        "PYTHONHOME": str(site),
        "PYTHONSTARTUP": str(site / "sitecustomize.py"),
        "PYTHONPYCACHEPREFIX": str(folder / "taken"),
    }


def is_of_root(path: Path) -> bool:
    return all(part.stat().st_uid == 0 and not part.stat().st_mode & 0o022 for part in (path.resolve(), *path.resolve().parents))


def test_a_set_user_id_program_takes_nothing_from_its_caller(program: Path) -> None:
    python = Path(sys.executable)
    folders = [sysconfig.get_path("purelib"), *(spec for spec in map(str, {library_folder().parents[2]}))]
    if not all(is_of_root(Path(part)) for part in (python, *folders)):
        pytest.skip("the Python of this environment does not belong to root alone")
    folder = program.parent
    done = as_nobody(program, **hostile(folder))
    assert not (folder / "taken").exists()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0\n"
    (line,) = done.stderr.splitlines()
    assert "core mask 64 is not possible" in line


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_a_set_user_id_program_refuses_settings_of_others(program: Path, mode: int) -> None:
    folder = program.parent
    (folder / "lib" / SETTINGS).chmod(mode)
    done = as_nobody(program, **hostile(folder))
    assert not (folder / "taken").exists()
    assert done.returncode != 0
    assert "librknnrt (anynpu): " in done.stderr


def test_a_set_user_id_program_refuses_packages_of_others(program: Path) -> None:
    settings = program.parent / "lib" / SETTINGS
    site = program.parent / "open"
    site.mkdir()
    site.chmod(0o777)
    settings.write_text(settings.read_text().rstrip("\n") + f":{site}\n")
    done = as_nobody(program)
    assert done.returncode != 0
    assert "others than root can change" in done.stderr


# --- where the settings of an installation lie


def test_the_settings_come_from_the_users_cache(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = installed.parent
    text = (folder / SETTINGS).read_text()
    (folder / SETTINGS).unlink()
    for variable, value in (("XDG_CACHE_HOME", folder / "cache"), ("HOME", folder / "home")):
        monkeypatch.setenv(variable, str(value))
        monkeypatch.delenv("HOME" if variable == "XDG_CACHE_HOME" else "XDG_CACHE_HOME", raising=False)
        path = settings_file(folder)
        path.parent.mkdir(parents=True)
        path.write_text(text)
        usual = build("settings.c", folder / "usual", str(NATIVE / "settings.c"), str(NATIVE / "secure.c"), library=None)
        found = settings_of(usual, ANYNPU_PYTHON="", ANYNPU_LIBPYTHON="", ANYNPU_SITE="", **{variable: str(value)})
        assert found["python"] == f"{folder}/bin/python3.11"
        assert settings_of(installed, **{variable: str(value)})["python"] == ""


def test_nothing_is_written_into_the_package(tmp_path: Path) -> None:
    before = sorted(prefix().rglob("*"))
    environment = clean_environment(XDG_CACHE_HOME=str(tmp_path / "cache"))
    for arguments in (("lib",), ("exec", "--chip", "rk3588", "--", "true")):
        assert run([sys.executable, "-m", "anynpu", *arguments], environment).returncode == 0
    assert sorted(prefix().rglob("*")) == before
    assert [path.name[:7] for path in (tmp_path / "cache" / "anynpu").iterdir()] == ["python-"]
