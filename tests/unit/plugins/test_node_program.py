"""Packer of programs for nodes: what it finds, what it removes, and programs of scripts that run."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuprov.probe.payload import node_program
from tests import ROOT

PACKER = "plugins/plugin_utils/node_program.py"
IMPORTING = '''\
"""Title."""
import json, gpuprov_node as node
from gpuprov.files import mutex
try:
    from gpuprov_sources import offers
except ImportError:
    import gpuprov_lines
TYPE_CHECKING = False
if TYPE_CHECKING:
    import gpuprov_apt
else:
    import gpuprov_place
def late():
    from gpuprov_devices import LABEL
text = """
import gpuprov_unit
"""
'''
DOCUMENTED = '''\
"""Title, which
goes on — to here."""  # a comment
class Two:
    r"""Ü, dropped."""
    value = """kept
"""
    """About the value, dropped."""
    other = one(
        """kept too""",
    )
if TYPE_CHECKING:  # dropped, as is the comment
    from nowhere import dropped

if TYPE_CHECKING:
    import dropped
else:
    third = "kept as well"
fails = one(
    1, 1)
'''


def packed(program: str) -> dict[str, str]:
    """Return name → text of the modules in a program, in their order."""
    loop = next(node for node in ast.parse(program).body if isinstance(node, ast.For))
    return dict(ast.literal_eval(loop.iter))


def test_imports_are_not_those_in_strings_nor_for_type_checkers() -> None:
    found = set(node_program.parsed(IMPORTING).imports)
    assert found >= {"json", "gpuprov_node", "gpuprov.files", "gpuprov.files.mutex"}
    assert found >= {"gpuprov_sources", "gpuprov_lines", "gpuprov_place", "gpuprov_devices"}
    assert not found & {"gpuprov_apt", "gpuprov_unit"}


def test_a_module_comes_after_those_that_it_imports() -> None:
    names = list(packed(node_program.loader(["gpuprov_lines", "gpuprov_node", "json", "gpuprov_none"])))
    assert names == [
        "gpuprov_place",
        "gpuprov_selinux",
        "gpuprov_replace",
        "gpuprov_lines",
        "gpuprov_versionlock",
        "gpuprov_failures",
        "gpuprov_locks",
        "gpuprov_node",
    ]


def test_modules_of_gpuprov_need_its_folder() -> None:
    names = ["gpuprov.apply.node.lease", "gpuprov.apply.node"]
    assert list(packed(node_program.loader(names, ROOT))) == [
        "gpuprov.files.mutex",
        "gpuprov.apply.node.lease",
    ]
    assert packed(node_program.loader(names)) == {}


def test_modules_that_import_each_other_are_both_packed(tmp_path: Path) -> None:
    (tmp_path / "gpuprov").mkdir()
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"gpuprov/{name}.py").write_text(f"def late():\n    import gpuprov.{other}\n")
    assert list(packed(node_program.loader(["gpuprov.a"], tmp_path))) == ["gpuprov.b", "gpuprov.a"]


def test_docstrings_and_what_is_for_type_checkers_are_emptied_and_nothing_else_changes() -> None:
    text = node_program.parsed(DOCUMENTED).text
    assert "dropped" not in text
    assert len(text.splitlines()) == len(DOCUMENTED.splitlines())
    names: dict[str, object] = {"__name__": "x", "TYPE_CHECKING": False, "one": lambda text: text}
    with pytest.raises(TypeError) as raised:
        exec(compile(text, "x", "exec"), names)  # noqa: S102
    assert raised.traceback[-1].lineno == 17  # counted from 0
    two = names["Two"]
    assert (getattr(two, "value", None), getattr(two, "other", None)) == ("kept\n", "kept too")
    assert names["third"] == "kept as well"


class Emptied(ast.NodeTransformer):
    """A program with `""` in place of what is not sent, and the names that it imports.

    Attributes:
        imports: after `from a import b` these are `a` and `a.b`.
    """

    def __init__(self) -> None:
        self.imports: list[str] = []

    def visit_If(self, node: ast.If) -> ast.AST:
        """Empty what is for type checkers."""
        if ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Expr(ast.Constant(""))]
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Empty statements that are only a string."""
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Expr(ast.Constant("")) if is_text else node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        """Add the modules to `imports`."""
        self.imports += [alias.name for alias in node.names]
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """Add the module, and what is imported from it, to `imports`."""
        if node.module:
            self.imports += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        return node


@pytest.mark.parametrize("folder", ["gpuprov", "plugins/module_utils", "roles/*/files"])
def test_what_is_sent_is_the_program_that_pythons_parser_reads(folder: str) -> None:
    for path in ROOT.glob(folder + "/**/*.py"):
        source = path.read_text()
        sent, imports = node_program.parsed(source)
        parser = Emptied()
        assert ast.dump(ast.parse(sent)) == ast.dump(parser.visit(ast.parse(source))), path
        assert list(imports) == parser.imports, path
        assert len(sent.splitlines()) == len(source.splitlines()), path


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("roles/*/files/*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_what_a_script_imports_loads_where_there_is_nothing_of_ours(path: Path) -> None:
    """Load the modules of the script's program and import them as the script does, without running it."""
    imports = [
        ast.unparse(each) for each in ast.parse(path.read_text()).body if "gpuprov_" in ast.unparse(each)
    ]
    loaded = node_program.loader(node_program.parsed(path.read_text()).imports)
    program = "\n".join([loaded, *(each for each in imports if each.startswith(("import ", "from ")))])
    command = [sys.executable, "-IBS", "-"]
    ran = subprocess.run(command, input=program, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert program.isascii()


def test_a_script_reads_its_argument() -> None:
    program = node_program.script(
        "import json, sys\nprint(json.loads(sys.argv[1])['name'])\n", '{"name": "ü\'"}'
    )
    ran = subprocess.run(
        [sys.executable, "-IB", "-"], input=program, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "ü'\n"


def test_processes_that_are_forked_later_parse_no_script() -> None:
    node_program.preload()
    before = node_program.parsed.cache_info().misses
    for path in ROOT.glob("roles/*/files/*.py"):
        node_program.script(path.read_text(), json.dumps({}))
    assert node_program.parsed.cache_info().misses == before


def test_there_is_one_packer() -> None:
    packers = [
        str(path.relative_to(ROOT))
        for folder in ("gpuprov", "plugins")
        for path in (ROOT / folder).rglob("*.py")
        if "types.ModuleType(" in path.read_text()
    ]
    assert packers == [PACKER]


def test_gpuprov_loads_the_packer_without_ansible() -> None:
    named = {name.partition(".")[0] for name in node_program.parsed((ROOT / PACKER).read_text()).imports}
    assert named <= sys.stdlib_module_names
