"""JSON lines that the front-end reads."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import ROOT
from tests.unit.roles.scripts import load


def task(
    name: str = "Install", role: str | None = "nvidia_driver", no_log: bool = False, parent: Any = None
) -> Any:
    """Return a fake task of Ansible in a role."""
    named = SimpleNamespace(get_name=lambda: role) if role else None
    return SimpleNamespace(
        name=name, action="ansible.builtin.apt", _role=named, _uuid=name, no_log=no_log, _parent=parent
    )


def result(data: dict[str, Any], of: Any = None) -> Any:
    """Return a fake result of a task on gpu01."""
    return SimpleNamespace(
        _host=SimpleNamespace(get_name=lambda: "gpu01"),
        _task=of or task(),
        _result=data,
        is_changed=lambda: bool(data.get("changed")),
        is_failed=lambda: bool(data.get("failed")),
    )


@pytest.fixture
def callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the callback plugin, which writes into a temporary file."""
    module = load(ROOT / "plugins/callback/gpuprov_jsonl.py", "gpuprov_jsonl")
    plugin = module.CallbackModule()
    monkeypatch.setattr(plugin, "get_option", lambda name: str(tmp_path / "events.jsonl"))
    monkeypatch.setattr(module.CallbackBase, "set_options", lambda *_, **__: None)
    plugin.set_options()
    yield plugin
    plugin._file.close()


@pytest.fixture
def events(tmp_path: Path) -> Any:
    """Return a function that reads the events written so far."""

    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]

    return read


def test_a_result_says_who_what_how_and_how_long(callback: Any, events: Any) -> None:
    callback.v2_runner_on_start(SimpleNamespace(get_name=lambda: "gpu01"), task())
    callback.v2_runner_on_ok(result({"changed": True, "msg": "done"}))
    begun, event = events()
    assert begun == {"event": "begin", "host": "gpu01", "role": "nvidia_driver", "task": "Install"}
    assert event.pop("seconds") >= 0
    assert event == {
        "event": "task", "host": "gpu01", "role": "nvidia_driver", "task": "Install",
        "status": "changed", "msg": "done",
    }  # fmt: skip


def test_a_failed_program_is_quoted(callback: Any, events: Any) -> None:
    for said in ("E: no room", "W: old\nE: no room"):
        callback.v2_runner_on_failed(result({"failed": True, "msg": "non-zero return code", "stderr": said}))
    callback.v2_runner_on_failed(result({"failed": True, "msg": "not there", "stderr": "E: no room"}))
    assert [event["msg"] for event in events()] == [
        "E: no room", "E: no room\nW: old\nE: no room", "not there\nE: no room",
    ]  # fmt: skip
    assert {event["status"] for event in events()} == {"failed"}


def test_a_failed_program_is_quoted_where_its_result_does_not_say_that_it_failed(
    callback: Any, events: Any
) -> None:
    """Quote standard error also from results of Ansible 2.19 and later, which do not contain `failed`."""
    callback.v2_runner_on_failed(result({"msg": "non-zero return code", "stderr": "E: no room"}))
    assert events()[0]["msg"] == "E: no room"


@pytest.mark.parametrize(("character", "size"), [("x", 1), ("\N{GRINNING FACE}", 12), ("\ud800", 6)])
def test_a_long_text_of_a_node_is_cut(callback: Any, events: Any, character: str, size: int) -> None:
    """Cut by the size of a line, which depends on the characters."""
    long = character * (1 << 20)
    callback.v2_runner_on_ok(result({"msg": long, "diff": {"before": "", "after": long}}))
    assert len(events()[0]["msg"]) == (1 << 18) // size
    assert (1 << 18) - size < len(json.dumps(events()[0]["diff"])) - 2 <= 1 << 18


def test_all_texts_of_a_node_have_a_limit_and_a_later_failure_is_still_named(
    callback: Any, events: Any, tmp_path: Path
) -> None:
    for _ in range(200):
        callback.v2_runner_on_ok(result({"msg": "\N{GRINNING FACE}" * (1 << 18)}))
    callback.v2_runner_on_failed(result({"failed": True, "msg": "E: no room"}))
    assert (tmp_path / "events.jsonl").stat().st_size < 1.5 * (1 << 20)
    assert events()[-1]["msg"] == "E: no room"


def test_a_failed_loop_says_what_its_first_failed_item_says(callback: Any, events: Any) -> None:
    items = [{"msg": "fine"}, {"failed": True, "msg": "refused"}]
    callback.v2_runner_on_failed(
        result({"failed": True, "msg": "One or more items failed", "results": items})
    )
    assert events()[0]["msg"] == "refused"


def test_what_must_not_be_logged_is_not(callback: Any, events: Any) -> None:
    secret = {"changed": True, "msg": "hunter2", "diff": {"before": "", "after": "hunter2"}}
    callback.v2_runner_on_ok(result(secret, task(no_log=True)))
    callback.v2_runner_on_ok(result({**secret, "_ansible_no_log": True}))
    assert "hunter2" not in json.dumps(events())


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('"http-proxy": "http://me:hunter2@proxy:3128",', '"http-proxy": "http://(hidden)@proxy:3128",'),
        ('"https-proxy": "http://me:h/unter2@x@proxy"', '"https-proxy": "http://(hidden)@proxy"'),
        ("HTTPS_PROXY=http://me:hunter2@proxy:3128/", "HTTPS_PROXY=http://(hidden)@proxy:3128/"),
        ('identitytoken = "hunter2"', 'identitytoken = "(hidden)"'),
        ('"auth": "hunter2==",', '"auth": "(hidden)",'),
        (
            "//nas/x /x cifs user=me,password=hunter2,ro 0 0",
            "//nas/x /x cifs user=me,password=(hidden),ro 0 0",
        ),
        ("REGISTRY_PASSWORD='hunter2 x'", "REGISTRY_PASSWORD='(hidden)'"),
        ('"registry-mirrors": ["https://mirror:5000"],', '"registry-mirrors": ["https://mirror:5000"],'),
        ("Author: me", "Author: me"),
    ],
)
def test_a_difference_has_no_secret_of_a_file(callback: Any, events: Any, line: str, shown: str) -> None:
    """Hide secrets also in the lines next to a change, which can have an administrator's proxy."""
    diff = {"before": f"{line}\na\n", "after": f"{line}\nb\n"}
    callback.v2_runner_on_ok(result({"changed": True, "diff": diff, "dest": "/etc/docker/daemon.json"}))
    assert f" {shown}\n" in events()[0]["diff"]


def test_a_message_has_no_password_of_a_mirror(callback: Any, events: Any) -> None:
    said = "E: Failed to fetch https://ci:hunter2@mirror/ubuntu/dists/noble/InRelease  403"
    callback.v2_runner_on_failed(
        result({"failed": True, "msg": said, "stderr": f"{said}\ndid not pass: driver.loaded"})
    )
    [event] = events()
    assert "https://(hidden)@mirror/ubuntu/dists/noble/InRelease  403" in event["msg"]
    assert "hunter2" not in event["msg"]
    assert "did not pass: driver.loaded" in event["msg"]


def test_a_difference_is_a_unified_diff_of_the_file(callback: Any, events: Any) -> None:
    diff = {"before": "a\nb\n", "after": "a\nc\n", "after_header": "/tmp/controller/file.j2"}
    callback.v2_runner_on_ok(result({"changed": True, "diff": [diff], "dest": "/etc/x"}))
    assert events()[0]["diff"].splitlines() == [
        "--- /etc/x",
        "+++ /etc/x",
        "@@ -1,2 +1,2 @@",
        " a",
        "-b",
        "+c",
    ]


def test_a_failure_inside_a_block_with_a_rescue_is_no_failure_yet(callback: Any, events: Any) -> None:
    block = SimpleNamespace(rescue=[], always=[], _parent=None, _uuid="block")
    nested = SimpleNamespace(rescue=[], always=[], _parent=block, _uuid="nested")
    inside, after = task("Install", parent=nested), task("Restore", parent=block)
    block.rescue.append(task("Restore"))  # Ansible makes a copy of the task
    callback.v2_runner_on_failed(result({"failed": True}, inside))
    callback.v2_runner_on_failed(result({"failed": True}, after))
    assert [event["status"] for event in events()] == ["rescued", "failed"]


def test_the_last_line_counts_what_happened_to_each_host(callback: Any, events: Any) -> None:
    counts = {
        "ok": 3,
        "changed": 1,
        "failures": 0,
        "skipped": 2,
        "rescued": 0,
        "ignored": 0,
        "unreachable": 0,
    }
    callback.v2_playbook_on_stats(SimpleNamespace(processed={"gpu01": 1}, summarize=lambda host: counts))
    assert events()[-1] == {
        "event": "stats",
        "hosts": {
            "gpu01": {"ok": 3, "changed": 1, "failed": 0, "skipped": 2, "rescued": 0, "unreachable": 0}
        },
    }


@pytest.mark.parametrize(
    "data", [{"results": 5}, {"diff": 5}, {"diff": [5, None]}, {"msg": {"a": [1]}}, {"stderr": 5}]
)
def test_values_of_any_type_leave_the_result(callback: Any, events: Any, data: dict[str, Any]) -> None:
    """Write the status with any value of a node: without it the failure would be the run's."""
    callback.v2_runner_on_failed(result(data))
    [event] = events()
    assert event["status"] == "failed"


def test_large_contents_are_not_compared(callback: Any, events: Any) -> None:
    """Limit the work in Ansible's main process, for which all nodes wait."""
    half = [{"before": "a\nb\n" * 900, "after": "b\na\n" * 900, "before_header": "/etc/x"}] * 3
    began = time.monotonic()
    callback.v2_runner_on_ok(result({"diff": half}))
    assert time.monotonic() - began < 5
    [event] = events()
    assert event["diff"].endswith("/etc/x: 1800 lines before, 1800 after\n" * 2)
    assert "@@" in event["diff"]


def test_workers_of_ansible_find_the_filters_loaded(callback: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no file of plugins is read after the start of a playbook: each task would do it again."""
    from ansible.plugins.loader import PluginLoader, filter_loader
    from ansible.plugins.loader import test_loader as of_tests

    loaders = (filter_loader, of_tests)
    for loader in loaders:
        loader._clear_caches()
    callback.v2_playbook_on_start(None)

    def fail(*_: Any) -> None:
        raise AssertionError("a file of plugins is read")

    monkeypatch.setattr(PluginLoader, "_load_module_source", fail)
    assert all(list(loader.all()) for loader in loaders)
