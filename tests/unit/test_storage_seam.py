"""Only ``storage.py`` calls the operating system's files; that is what lets a test stand in for the disk.

``endpoint.py`` alone makes sockets, and calls what the name of a socket needs: no disk could fail there in a test.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "holdfast"
STORAGE = PACKAGE / "persistence" / "filesystem" / "storage.py"
SOURCES = sorted({*PACKAGE.glob("persistence/**/*.py"), *PACKAGE.glob("queue/**/*.py")} - {STORAGE})

OS_NAMES = {"PathLike", "environ", "fspath", "geteuid", "getpid", "path", "register_at_fork"}  # none of them is a file
OS_PATH_NAMES = {"abspath", "join", "normpath", "relpath"}  # text only
FILE_MODULES = {"fcntl", "glob", "io", "mmap", "portalocker", "shutil", "tempfile"}
PATH_METHODS = {
    "chmod", "exists", "expanduser", "glob", "hardlink_to", "is_dir", "is_file", "is_mount", "is_symlink", "iterdir",
    "lchmod", "lstat", "mkdir", "read_bytes", "read_text", "readlink", "rglob", "rmdir", "samefile", "stat",
    "symlink_to", "touch", "unlink", "walk", "write_bytes", "write_text",
}  # fmt: skip
ENDPOINT = PACKAGE / "queue" / "transport" / "endpoint.py"
SOCKET_NAME_CALLS = {
    "import tempfile", "os.O_CLOEXEC", "os.O_DIRECTORY", "os.O_RDONLY", "os.chmod", "os.close", "os.fsencode",
    "os.listdir", "os.lstat", "os.open", "os.path.realpath", "os.rename", "os.strerror", "os.unlink",
    "_DESCRIPTORS.is_dir", "path.mkdir",
}  # fmt: skip
SOCKET_CALLS = {"create_connection", "create_server", "from_fd", "fromfd", "socket", "socketpair"}
PORT_VERBS = {"open", "rename"}  # of a Path too
PORTS = ("storage", "self.group")  # a group is opened through the port


def file_calls(source: str) -> Iterator[str]:
    """Yield what of a source could reach a file without the port."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"import {name}" for name in names if name in FILE_MODULES)
            if isinstance(node, ast.ImportFrom) and node.module in {"os", "os.path"}:
                yield f"from {node.module} import"
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if (owner == "os" and node.attr not in OS_NAMES) or (owner == "os.path" and node.attr not in OS_PATH_NAMES):
                yield ast.unparse(node)
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id == "open":
                yield "open()"
            elif isinstance(called, ast.Attribute):
                is_port = ast.unparse(called.value).lower().endswith(PORTS)
                if called.attr in PATH_METHODS or (called.attr in PORT_VERBS and not is_port):
                    yield f"{ast.unparse(called)}()"


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.stat(path)",
        "import os\nos.path.realpath(path)",
        "from os import stat",
        "import shutil",
        "open(path)",
        "path.open()",
        "path.read_text()",
        "Path(path).unlink()",
        "path.rename(other)",
        "list(path.iterdir())",
    ],
)
def test_a_call_beside_the_port_is_seen(source: str) -> None:
    """Whatever way it takes: the rule below could pass over all of them."""
    assert list(file_calls(source))


def test_verbs_of_the_port_and_paths_as_text_are_no_file_calls() -> None:
    """They are what the rest is written in."""
    source = "import os\nself._storage.open(path)\nstorage.rename(a, b)\nos.path.join(a, b)\nos.getpid()\npath.name\n"
    assert list(file_calls(source)) == []


def test_only_the_storage_module_calls_the_files_of_the_operating_system() -> None:
    """Everything else of persistence and queue speaks to the port, so that every call can fail in a test."""
    assert STORAGE.is_file()
    found = [
        f"{path.relative_to(PACKAGE)}: {call}"
        for path in SOURCES
        for call in file_calls(path.read_text(encoding="utf-8"))
        if path != ENDPOINT or call.removesuffix("()") not in SOCKET_NAME_CALLS
    ]
    assert not found, "\n".join(found)


def test_each_call_that_the_endpoint_may_make_is_one_that_it_makes() -> None:
    """What it no longer needs is no longer allowed."""
    made = {call.removesuffix("()") for call in file_calls(ENDPOINT.read_text(encoding="utf-8"))}
    assert made == SOCKET_NAME_CALLS


def socket_calls(source: str) -> Iterator[str]:
    """Yield what of a source makes a socket."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in {"socket", "_socket"}:
            yield from (
                f"from socket import {each.name}" for each in node.names if each.name in SOCKET_CALLS - {"socket"}
            )
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute | ast.Name):
            name = ast.unparse(called)
            is_made = name == "socket" or (
                name.startswith(("socket.", "sockets.")) and name.split(".")[1] in SOCKET_CALLS
            )
            yield from [f"{name}()"] * is_made


@pytest.mark.parametrize(
    "source",
    ["socket.socket(1, 2)", "socket.socketpair()", "from socket import socketpair", "socket()", "sockets.socket()"],
)
def test_a_socket_that_is_made_is_seen(source: str) -> None:
    """By module, by name, or as a pair."""
    assert list(socket_calls(source))


def test_only_the_endpoint_makes_sockets() -> None:
    """So that each of them is checked for its peer, and closed in a forked child. A loop wakes itself by a pair."""
    found = {
        (path, call)
        for path in SOURCES
        for call in socket_calls(path.read_text(encoding="utf-8"))
        if path.parent != ENDPOINT.parent or call != "socket.socketpair()"
    }
    assert found == {(ENDPOINT, "socket.socket()")}
