"""The user's own modules that a program needs, found without running any of it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import zipfile
from importlib.machinery import NamespaceLoader, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from parl_remote._files.program import OwnCode, OwnFile, RootSource, closure, compiled_imports, is_own, loaded_modules


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def write(project: Path, **files: str) -> None:
    """Files by their paths, with "__" for "/" and without ".py"; `a__init` is a/__init__.py."""
    for name, source in files.items():
        path = project / f"{name.replace('__', '/')}.py"
        path = path.with_name("__init__.py") if path.name == "init.py" else path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))


def needed(source: str, package: str = "", modules: tuple[str, ...] = ()) -> set[str]:
    return {own.path for own in closure([RootSource(textwrap.dedent(source), package)], modules)}


def test_a_module_and_what_it_imports_in_turn(project: Path) -> None:
    write(project, top_one="import top_two", top_two="import json\nfrom top_three import x", top_three="", alone="")
    assert needed("import top_one") == {"top_one.py", "top_two.py", "top_three.py"}


def test_imports_within_functions_count(project: Path) -> None:
    write(project, lazy_one="")
    assert needed("def f():\n    if 0:\n        from lazy_one import x") == {"lazy_one.py"}


def test_a_package_comes_whole_with_its_subpackages(project: Path) -> None:
    write(project, pkg_a__init="", pkg_a__one="", pkg_a__sub__init="", pkg_a__sub__two="import side_one", side_one="")
    whole = {"pkg_a/__init__.py", "pkg_a/one.py", "pkg_a/sub/__init__.py", "pkg_a/sub/two.py"}
    assert needed("import pkg_a.one") == whole | {"side_one.py"}
    assert needed("from pkg_a.sub import two") == whole | {"side_one.py"}


def test_relative_imports_are_resolved(project: Path) -> None:
    write(
        project,
        pkg_b__init="from . import one",
        pkg_b__one="from .sub.deep import x\nfrom ..nowhere import y",
        pkg_b__sub__init="",
        pkg_b__sub__deep="from ...too_far import z\nfrom .. import one",
    )
    assert needed("from .one import x", package="pkg_b") == {
        "pkg_b/__init__.py",
        "pkg_b/one.py",
        "pkg_b/sub/__init__.py",
        "pkg_b/sub/deep.py",
    }


def test_of_a_namespace_package_comes_what_is_imported(project: Path) -> None:
    write(project, space__one="from space.inner import two", space__inner__two="", space__other="", space__reg__init="")
    write(project, space__reg__part="")
    assert needed("import space.one") == {"space/one.py", "space/inner/two.py"}
    assert needed("import space.reg") == {"space/reg/__init__.py", "space/reg/part.py"}


def test_a_directory_that_stands_for_a_namespace_package_is_no_file(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pytest's "importlib" mode makes them of directories whose names are none, with the dots replaced."""
    write(project, beside_it="")
    for name, path in (("_dots", project / ".dots"), ("_dots.inner", project / ".dots/inner")):
        path.mkdir()
        loader = NamespaceLoader(name, [str(path)], PathFinder.find_spec)
        spec = spec_from_file_location(name, str(path), loader=loader)
        assert spec is not None
        monkeypatch.setitem(sys.modules, name, module_from_spec(spec))
    write(project / ".dots", **{"inner__not_imported": "", "inner__test_one": "import beside_it"})
    module = spec_from_file_location("_dots.inner.test_one", str(project / ".dots/inner/test_one.py"))
    assert module is not None
    monkeypatch.setitem(sys.modules, module.name, module_from_spec(module))
    found = [Path(own.file) for own in closure([], [name for name in loaded_modules() if name.startswith("_dots")])]
    assert sorted(found) == [project / ".dots/inner/test_one.py", project / "beside_it.py"]


def test_a_namespace_package_may_lie_in_two_places(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    sys.path.append(str(other))
    try:
        write(project, shared_ns__one="")
        write(other, shared_ns__two="")
        found = {own.path: own.root for own in closure([RootSource("import shared_ns.one, shared_ns.two")], ())}
    finally:
        sys.path.remove(str(other))
    assert found == {"shared_ns/one.py": str(project), "shared_ns/two.py": str(other)}


@pytest.mark.parametrize(
    "source",
    [
        "import importlib\nimportlib.import_module('dyn_one')",
        "from importlib import import_module\nimport_module(name='dyn_one')",
        "__import__('dyn_one')",
    ],
)
def test_literal_names_of_dynamic_imports_count(project: Path, source: str) -> None:
    write(project, dyn_one="")
    assert needed(source) == {"dyn_one.py"}


def test_a_relative_dynamic_import_is_resolved(project: Path) -> None:
    write(project, pkg_c__init="import importlib\nimportlib.import_module('.one', __name__)", pkg_c__one="")
    assert needed("import pkg_c") == {"pkg_c/__init__.py", "pkg_c/one.py"}


def test_of_a_computed_name_the_package_counts(project: Path) -> None:
    write(project, pkg_d__init="", pkg_d__one="", pkg_d__two="")
    source = "import importlib\ndef load(name):\n    return importlib.import_module(f'pkg_d.{name}')"
    assert needed(source) == {"pkg_d/__init__.py", "pkg_d/one.py", "pkg_d/two.py"}


def test_the_users_own_module_wins_over_an_installed_one_of_its_name(project: Path) -> None:
    write(project, psutil="")
    loaded = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "psutil"}
    try:
        assert needed("import psutil") == {"psutil.py"}
    finally:
        sys.modules.update(loaded)


def test_what_is_installed_or_parls_own_stays_at_home(project: Path) -> None:
    assert needed("import json, numpy, numpy.random, parl, parl_remote._program.client, pytest, zmq") == set()


def test_what_does_not_exist_is_no_error(project: Path) -> None:
    write(project, half_one="import no_such_thing, half_one.part\nfrom half_one import name")
    assert needed("try:\n    import nothing_here\nexcept ImportError:\n    import half_one") == {"half_one.py"}


def test_code_that_cannot_be_parsed_travels_all_the_same(project: Path) -> None:
    write(project, bad_one="def (:")
    assert needed("import bad_one\n") == {"bad_one.py"}
    assert needed("this is not Python") == set()


def test_circles_end(project: Path) -> None:
    write(project, circle_one="import circle_two", circle_two="import circle_one")
    assert needed("import circle_one") == {"circle_one.py", "circle_two.py"}


def test_a_changed_module_is_read_again(project: Path) -> None:
    write(project, changing_one="", changed_for="")
    assert needed("import changing_one") == {"changing_one.py"}
    write(project, changing_one="import changed_for")
    assert needed("import changing_one") == {"changing_one.py", "changed_for.py"}


def test_nothing_is_run(project: Path) -> None:
    write(project, fatal__init="raise SystemExit", fatal__part="raise SystemExit")
    assert needed("import fatal.part") == {"fatal/__init__.py", "fatal/part.py"}
    assert "fatal" not in sys.modules


def test_an_archive_travels_as_it_is(project: Path) -> None:
    archive = project / "library.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped_one.py", "")
    sys.path.append(str(archive))
    try:
        (own,) = closure([RootSource("import zipped_one")], ())
    finally:
        sys.path.remove(str(archive))
    assert (own.root, own.path, own.file) == (str(archive), "", str(archive))


def test_a_compiled_module_of_the_users_travels(project: Path) -> None:
    from importlib.machinery import EXTENSION_SUFFIXES

    (project / f"fast_one{EXTENSION_SUFFIXES[0]}").write_bytes(b"\x7fELF")
    assert needed("import fast_one") == {f"fast_one{EXTENSION_SUFFIXES[0]}"}


def test_what_is_imported_already_can_be_listed(project: Path) -> None:
    write(project, loaded_one="")
    import loaded_one  # type: ignore[import-not-found]  # made by this test

    try:
        assert "loaded_one" in loaded_modules()
        assert "json" not in loaded_modules()
        assert "numpy" not in loaded_modules()
    finally:
        del sys.modules["loaded_one"], loaded_one


def test_own_is_what_is_neither_library_nor_installed(tmp_path: Path) -> None:
    assert is_own(str(tmp_path / "x.py"))
    assert not is_own(textwrap.__file__)
    assert not is_own(pytest.__file__)
    assert not is_own(str(tmp_path / ".venv/lib/python3.11/site-packages/x.py"))
    assert not is_own("built-in")


def test_what_was_found_is_remembered_until_something_changes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    def read(class_module: str) -> list[OwnFile]:
        reads.append(class_module)
        return closure((), [class_module])

    monkeypatch.setattr("parl_remote._files.program.own_code", read)
    code = OwnCode()
    write(project, kept_one="import kept_two", kept_two="")
    assert code.of("kept_one") == code.of("kept_one")
    assert reads == ["kept_one"]
    write(project, kept_two="import kept_three", kept_three="")
    assert {own.path for own in code.of("kept_one")} == {"kept_one.py", "kept_two.py", "kept_three.py"}
    monkeypatch.chdir(project)
    code.of("kept_one")
    (project / "kept_two.py").unlink()
    code.of("kept_one")
    assert len(reads) == 4


def test_what_compiled_functions_and_classes_import_is_found() -> None:
    source = """
        import functools
        from textwrap import dedent  # a function of another library: not looked into
        def plain():
            import one.two
            return lambda: __import__("unseen")
        @functools.lru_cache
        def cached():
            from three import four
        class Outer:
            class Inner:
                def method(self):
                    def local():
                        import five
            @staticmethod
            def static():
                import six
            @classmethod
            def of_class(cls):
                import seven
            @property
            def value(self):
                import eight
        number = 5
    """
    namespace: dict[str, object] = {"__name__": "program"}
    exec(textwrap.dedent(source), namespace)
    names = {"one.two", "three", "three.four", "five", "six", "seven", "eight"}
    assert set(compiled_imports(namespace)) == names


def test_a_program_from_a_pipe_brings_what_its_methods_import(project: Path) -> None:
    write(project, pkg_late__init="", pkg_late__sub__init="", pkg_late__sub__deep="", other_late__init="")
    program = """
        class Actor:
            def work(self):
                from pkg_late.sub import deep
        from parl_remote._files.program import OwnCode
        code = OwnCode()
        print(sorted(own.path for own in code.of("__main__")))
        def later():
            import other_late
        print(sorted(own.path for own in code.of("__main__")))
    """
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path and path != str(project))}
    out = subprocess.run(
        [sys.executable, "-"],
        input=textwrap.dedent(program),
        capture_output=True,
        text=True,
        check=True,
        cwd=project,
        env=environment,
        timeout=240,
    ).stdout
    package = ["pkg_late/__init__.py", "pkg_late/sub/__init__.py", "pkg_late/sub/deep.py"]
    assert out.splitlines() == [str(package), str(["other_late/__init__.py", *package])]
