"""The rules of the house that no linter knows: sizes, docstrings, and no module that hides the standard library's."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from support.code_lines import code_lines

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "holdfast"
SOURCES = sorted(PACKAGE.rglob("*.py"))

FILE_CODE_LINES_MAX = 350  # what a newcomer can hold in mind at one sitting; prose and blanks do not cut a class in two
WHOLE_CLASSES = {  # one class each, without bases: cut into parts, its calls would have to be followed through files
    PACKAGE / "queue" / "persistent_queue.py",
    PACKAGE / "queue" / "consumer" / "read_side.py",
}
FUNCTION_LINES_MAX = 70  # one screen
ROOM_MODULES_MAX = 14  # what a newcomer finds a module among; ``__init__`` and ``__main__`` are its doors
FACE_LINES_MIN = 5
HELPED = ("tests/crash", "tests/support", "tests/proof", "benchmarks", "examples")
PARAMETERS_MAX = 7  # of a constructor; what belongs together is handed in together

Function = ast.FunctionDef | ast.AsyncFunctionDef


def place(path: Path, node: ast.AST | None = None) -> str:
    """Return where something stands, as an editor understands it."""
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def tree(path: Path) -> ast.Module:
    """Parse one source file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def is_public(path: Path) -> bool:
    """Tell whether a module can be imported without a leading underscore."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return all(part in {"__init__", "__main__"} or not part.startswith("_") for part in parts)


def is_overload(node: ast.AST) -> bool:
    """Tell whether a function only declares one signature of several."""
    decorators = node.decorator_list if isinstance(node, Function) else []
    return any(ast.unparse(decorator) in {"overload", "typing.overload"} for decorator in decorators)


def undocumented(path: Path) -> Iterator[str]:
    """Yield the module and its public top-level classes and functions, those that have no docstring."""
    module = tree(path)
    if not (ast.get_docstring(module) or "").strip():
        yield f"{place(path)} module"
    for node in module.body:
        if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_") or is_overload(node):
            continue
        if not (ast.get_docstring(node) or "").strip():
            yield f"{place(path, node)} {node.name}"


def test_the_rules_look_at_the_real_source() -> None:
    """The other rules would pass over an empty folder, so the package has to be where they look."""
    assert PACKAGE / "__init__.py" in SOURCES
    assert PACKAGE / "persistence" / "format" / "constants.py" in SOURCES


def test_lines_of_code_are_counted_without_docstrings_comments_and_blanks() -> None:
    """The count that the next rule goes by: a statement of three lines is three, a docstring of any length none."""
    source = '"""Two\nlines."""\n\n# why\nx = (\n    1,  # one\n)\n\n\ndef f():\n    """Do."""\n    return x\n'
    assert code_lines(source) == 5


def test_no_source_file_has_more_than_350_lines_of_code() -> None:
    """A file that outgrows the limit holds more than one concept."""
    too_long = [
        f"{place(path)}: {lines} lines of code"
        for path in SOURCES
        if path not in WHOLE_CLASSES
        if (lines := code_lines(path.read_text(encoding="utf-8"))) > FILE_CODE_LINES_MAX
    ]
    assert not too_long, "\n".join(too_long)


def test_a_file_without_that_limit_holds_one_class_without_bases() -> None:
    """The exemption is for a class, not for what gathers beside it."""
    for path in WHOLE_CLASSES:
        (only,) = [node for node in tree(path).body if isinstance(node, ast.ClassDef | Function)]
        assert isinstance(only, ast.ClassDef)
        assert not only.bases


def test_persistence_has_every_record_said_by_a_thread() -> None:
    """Its callers hold locks, and a handler of records may call the queue: ``holdfast.threads.log_later``."""
    loggers = [
        place(path, node)
        for path in SOURCES
        if path.is_relative_to(PACKAGE / "persistence")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr == "getLogger"
    ]
    assert not loggers, "\n".join(loggers)


def test_no_thread_waits_in_what_an_interruption_leaves_locked() -> None:
    """Conditions, events and semaphores of ``threading`` are Python code: see ``notifier.py``, whose Flag is none."""
    waits = re.compile(r"threading\.(Condition|Event|Semaphore|BoundedSemaphore|Barrier)\(")
    assert [str(path) for path in SOURCES if waits.search(path.read_text(encoding="utf-8"))] == []


def test_no_function_is_longer_than_70_lines() -> None:
    """A function fits on a screen, its docstring included."""
    too_long = [
        f"{place(path, node)} {node.name}: {lines} lines"
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, Function) and node.end_lineno is not None
        if (lines := node.end_lineno - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not too_long, "\n".join(too_long)


def exported(path: Path) -> list[str]:
    """Return the ``__all__`` of a module."""
    (names,) = [
        node.value for node in tree(path).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]  # fmt: skip
    return list(ast.literal_eval(names))


def constructors() -> Iterator[tuple[Path, ast.ClassDef, Function]]:
    """Yield the constructors that are written out, each with its file and its class."""
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                yield from ((path, node, each) for each in node.body if getattr(each, "name", "") == "__init__")


def test_no_constructor_of_the_inside_takes_more_than_7_parameters() -> None:
    """Options of public classes are named by their callers; inside, so many hide what belongs together."""
    faces = [PACKAGE / room / "__init__.py" for room in ("", "arrow", "spark")]
    public = {name for face in faces for name in exported(face)}
    too_many = [
        f"{place(path, init)} {owner.name}: {count} parameters"
        for path, owner, init in constructors()
        if owner.name not in public
        if (count := len([*init.args.posonlyargs, *init.args.args, *init.args.kwonlyargs]) - 1) > PARAMETERS_MAX
    ]
    assert not too_many, "\n".join(too_many)


def test_every_public_module_class_and_function_has_a_docstring() -> None:
    """What can be imported says what it is for."""
    missing = [name for path in SOURCES if is_public(path) for name in undocumented(path)]
    assert not missing, "\n".join(missing)


ROOMS = sorted(path.parent for path in SOURCES if path.name == "__init__.py" and path.parent != PACKAGE)


def test_no_room_has_more_than_14_modules() -> None:
    """A folder is taken in at one look: the source, crash tests, helpers, proofs, benchmarks and examples."""
    folders = {*ROOMS, *(path.parent for name in HELPED for path in (ROOT / name).rglob("*.py"))}
    counts = {
        place(folder): len([path for path in folder.glob("*.py") if path.stem not in {"__init__", "__main__"}])
        for folder in folders
    }
    assert len(counts) > 40
    too_full = [f"{folder}: {count} modules" for folder, count in counts.items() if count > ROOM_MODULES_MAX]
    assert not too_full, "\n".join(too_full)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(PACKAGE)))
def test_the_face_of_each_room_says_what_it_is_for_and_what_it_may_import(room: Path) -> None:
    """Five lines are the least that can say purpose, invariants and imports."""
    face = ast.get_docstring(tree(room / "__init__.py")) or ""
    assert len(face.splitlines()) >= FACE_LINES_MIN
    assert re.search(r"\b(May import:|imports only)", face)


def test_unit_tests_follow_the_rooms() -> None:
    """Each folder of them is a room, and each room of queue and persistence has one; a module need not have a file."""
    folders = {path.parent.name for path in (ROOT / "tests" / "unit").glob("*/**/test_*.py")}
    assert folders - {room.name for room in ROOMS} == {"benchmarks", "support"}  # whose tests are of those folders
    assert {room.name for room in ROOMS if room.parent.name in {"queue", "persistence"}} <= folders


@pytest.mark.parametrize("folder", [".", "src", "tests", "tests/unit", "benchmarks", "examples"])
def test_no_folder_on_the_import_path_offers_a_top_level_queue(folder: str) -> None:
    """A module or folder of that name would hide the standard library's ``queue``."""
    assert PathFinder.find_spec("queue", [str(ROOT / folder)]) is None


def test_the_package_folder_itself_is_not_on_the_import_path() -> None:
    """With it there, ``import queue`` would find ``holdfast.queue``."""
    assert PACKAGE not in [Path(entry).resolve() for entry in sys.path]
