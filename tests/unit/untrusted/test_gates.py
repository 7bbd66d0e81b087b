"""Gates: the interpreter behind a gate treats every text as data."""

from __future__ import annotations

import json
import logging
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuprov.cli.common import terminal
from gpuprov.doctor.fault import Fault
from gpuprov.doctor.judge import Diagnosis
from gpuprov.errors import NodeFailed
from gpuprov.report.doctor import doctor_junit
from gpuprov.untrusted import (
    LogFormatter,
    ansible_json,
    below,
    html_text,
    is_template,
    json_line,
    json_text,
    on_one_line,
    printable,
    regex,
    shell,
    shell_words,
    shown,
    without_templates,
    xml_text,
)

TEXT = st.text(alphabet=st.characters(codec=None))


@given(TEXT)
def test_a_shell_sees_one_word(text: str) -> None:
    if text.startswith("-"):
        with pytest.raises(NodeFailed, match="no - in front"):
            shell("sudo rm {}", text)
        return
    assert shlex.split(shell("sudo rm {}", text)) == ["sudo", "rm", on_one_line(text)]
    assert shlex.split(shell("x --set={}; y {}", text, 3)) == ["x", f"--set={on_one_line(text)};", "y", "3"]


def test_a_shell_line_takes_as_many_words_as_it_has_places() -> None:
    assert shell("awk '{{print}}' {}", "a b") == "awk '{print}' 'a b'"
    assert shell("apt-mark hold {}", shell_words(["a", "b;c"])) == "apt-mark hold a 'b;c'"
    with pytest.raises(TypeError):
        shell("rm {}", "a", "b")
    with pytest.raises(TypeError):
        shell("rm {} {}", "a")


@given(TEXT)
def test_a_terminal_gets_no_control_characters(text: str) -> None:
    shown_text = printable(text)
    assert not {sign for sign in shown_text if ord(sign) < 32 or 0x7F <= ord(sign) < 0xA0} - {"\n", "\t"}
    shown_text.encode()
    assert len(on_one_line(text).splitlines()) <= 1 or "\t" in text
    assert len(shown(text, 10)) <= 10 * 10 + 3


REGISTERED = ("set-output", "add-mask", "error", "stop-commands")


WEIGHTLESS = "\xad\u034f\u200b\u200d\u2060\ufe0f\U000e0020"
"""Some of the characters that a comparison by language (ICU's, of .NET) ignores."""


def is_command(line: str) -> bool:
    """Return whether GitHub's runner reads a line as a command, as its ActionCommand.cs does.

    Its search for the second `::` is one by language, that for the name is not.
    """
    line = line.lstrip()
    if line.startswith("::") and (end := re.search(f"[{WEIGHTLESS}]*:[{WEIGHTLESS}]*:", line[2:])):
        return line[2 : 2 + end.start()].split(" ")[0] in REGISTERED
    start = line.find("##[")
    return (
        start >= 0
        and "]" in line[start:]
        and line[start + 3 : line.index("]", start)].split(" ")[0] in REGISTERED
    )


COMMANDS = [
    "##[set-output name=code]0",
    "text ##[error]of a node",
    "::set-output name=code::0",
    " \t::error::x",
    "\u3000\xa0::stop-commands::x",
    "first\n::add-mask::x\n##[add-mask]y",
    "::error file=a,line=1 :: x::y",
    "::error:\xad:x",
    "::error\u2060::x",
    "::error a=\xad:\u200b:x",
    "::stop-commands:\U000e0020\ufe0f:x",
]


@pytest.mark.parametrize("text", COMMANDS)
def test_a_job_reads_no_command(text: str) -> None:
    assert any(map(is_command, text.split("\n")))
    assert not any(map(is_command, printable(text).split("\n")))
    assert not any(map(is_command, on_one_line(text).split("\n")))
    for document in (text, [text], {text: {text: text}}):
        for indent in (None, 2):
            whole = json_text(document, indent=indent)
            assert not any(map(is_command, whole.split("\n")))
            assert json.loads(whole) == document


@given(
    st.lists(st.sampled_from(["#", "[", "]", ":", "::", "##[", "error", " ", "\n", "\t", "a=b", *"\x1b\xad"]))
)
def test_no_text_becomes_a_command_of_a_job(words: list[str]) -> None:
    text = "".join(words)
    assert not any(map(is_command, printable(text).splitlines()))
    assert printable(printable(text)) == printable(text)


def test_other_signs_of_that_kind_are_kept() -> None:
    for text in (
        "::1 is up",
        "::ffff:10.0.0.1 and ::1",
        "## Title",
        "a::b::c",
        "##",
        "std::error::Error",
        "#[x]",
    ):
        assert printable(text) == text
    assert printable("##vso[task.setvariable variable=a]b") == r"#\x23vso[task.setvariable variable=a]b"
    assert printable("##teamcity[buildStop]") == r"#\x23teamcity[buildStop]"
    assert printable("  ::error::x") == r"  \x3a:error::x"


def test_a_shell_gets_signs_of_commands_unchanged() -> None:
    assert shell("rm {} {}", "##[x]", "::a::b") == "rm '##[x]' ::a::b"


@given(TEXT)
def test_xml_and_html_hold_it_as_text(text: str) -> None:
    element = ET.Element("a", name=xml_text(text))
    element.text = xml_text(text)
    read = ET.fromstring(ET.tostring(element))  # noqa: S314 - it is our own
    assert read.text in (xml_text(text), None)
    assert not set('<>"') & set(html_text(text))


@given(TEXT)
def test_json_is_one_line_of_ascii(text: str) -> None:
    line = json_line({text: text})
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == {text: text}


@given(TEXT)
def test_a_regular_expression_finds_it_alone(text: str) -> None:
    assert re.fullmatch(f"x{regex(text)}y", f"x{text}y")


def test_a_path_stays_inside_its_folder(tmp_path: Path) -> None:
    assert below(tmp_path, "6.1.0-56-amd64") == tmp_path / "6.1.0-56-amd64"
    for name in ("", ".", "..", "../x", "/etc", "a/b", ".ssh", "-rf", "a\0", "a\n", "a b", "*", "é"):
        with pytest.raises(NodeFailed, match="name of a file"):
            below(tmp_path, name)


OTHER_SIGNS = "#jinja2:variable_start_string:'[[',variable_end_string:']]'\n[[ lookup('pipe', 'id') ]]"


@pytest.mark.parametrize("text", ["{{ x }}", "a {% raw %}", "{# x", "{{", OTHER_SIGNS])
@pytest.mark.parametrize(
    "wrap", [lambda t: t, lambda t: {"a": [{"b": t}]}, lambda t: {t: 1}, lambda t: ({t},)]
)
def test_a_template_is_refused_wherever_it_is(text: str, wrap) -> None:
    with pytest.raises(NodeFailed, match="looks like a template"):
        without_templates(wrap(text), "the modules of node1")
    assert without_templates({"a": ["{", "} }", 5, None]}, "") == {"a": ["{", "} }", 5, None]}


def test_every_string_for_ansible_is_marked_as_text() -> None:
    result = json.loads(ansible_json({"a": ["{{ x }}", {"b": "c"}], "n": 1, "none": None, "yes": True}))
    text = "__ansible_unsafe"
    assert result == {"a": [{text: "{{ x }}"}, {"b": {text: "c"}}], "n": 1, "none": None, "yes": True}
    with pytest.raises(NodeFailed, match="as a key"):
        ansible_json({"a": [{"__ansible_vault": "x"}]})


@given(TEXT)
def test_a_terminal_gets_json_that_is_still_json(text: str) -> None:
    shown_text = json_text({"a": text})
    assert json.loads(shown_text) == {"a": text}
    assert printable(shown_text) == shown_text


def test_a_node_cannot_write_a_line_of_its_own_into_a_log() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "%s failed", ("a\n12:00 exit 0\x1b[2J",), None)
    assert LogFormatter("%(message)s").format(record) == r"a\n12:00 exit 0\x1b[2J failed"


def test_a_log_has_no_secret_of_a_url() -> None:
    for message in (
        "lock --from https://ops:pa55@mirror.example/x?sig=abc",
        "'https://ops:pa55@mirror.example/x'",
    ):
        record = logging.LogRecord("x", logging.INFO, "", 0, "%s", (message,), None)
        text = LogFormatter("%(message)s").format(record)
        assert "mirror.example/x" in text
        assert not re.search("pa55|ops|abc", text)
    error = ValueError("https://ops:pa55@mirror.example/x")
    record = logging.LogRecord("x", logging.INFO, "", 0, "%s", ("bad",), (ValueError, error, None))
    assert LogFormatter("%(message)s").format(record).endswith("ValueError: https://mirror.example/x")


def test_the_command_line_spells_out_what_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for write in (terminal.say, terminal.tell):
        write("a\x1b[31m\rb\nfleet in sync\u202e")
        assert capsys.readouterr().out == r"a\x1b[31m\rb\nfleet in sync\u202e" + "\n"
    terminal.show("a\n\x9bb\n")
    assert capsys.readouterr().out == "a\n\\x9bb\n"


def test_junit_of_the_doctor_is_xml_whatever_a_machine_says() -> None:
    hostile = "".join(map(chr, [*range(0x20), 0x7F, 0x85, 0xFFFE, 0xFFFF, 0xD800])) + "]]><x>"
    fault = Fault("broken", hostile, (hostile,), hostile, (shell("rm {}", hostile),), rule="a.b")
    found = [Diagnosis(hostile, (fault,), (("c.d", hostile),)), Diagnosis("x", failure=NodeFailed(hostile))]
    root = ET.fromstring(doctor_junit(found).partition("\n")[2])  # noqa: S314 - it is our own
    assert len(root.findall("testsuite/testcase")) == 3


@given(
    st.lists(st.sampled_from(["{", "{{", "%", "#", "jinja2", ":", " ", "\n", "[[ x ]]", "}}"])).map("".join)
)
@example(OTHER_SIGNS)
def test_whatever_ansible_takes_for_a_template_is_one(text: str) -> None:
    ansible = pytest.importorskip("ansible._internal._templating._jinja_bits")
    assert is_template(text) >= ansible.is_possibly_template(text)
