"""Entry point on a node: the collectors run in parallel, and one framed answer is written."""

import base64
import hashlib
import json
import os
import sys
import threading
import time
import zlib

from gpuprov.probe.node.base import CHILDREN, COLLECTORS, Failed, stop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprov.probe.node.base import Values

LIMIT = 8000000
"""Maximum size of all values in bytes, a little less than the controller reads."""


def main(parameters: "Values") -> None:
    """Collect, write the answer, and exit at once, without waiting for a thread in uninterruptible sleep.

    `parameters` has `nonce`, and what `collect` and the collectors require.
    """
    found = collect(parameters)
    leave_out_largest(found["collectors"])
    say(parameters["nonce"], found)
    os._exit(0)


def leave_out_largest(values: "Values") -> None:
    """Replace the largest values by errors until all together can be read: users choose the size of some.

    Each value in a list or mapping counts as 128 bytes, as the number of values that are read has a limit.
    """
    sizes = {}
    for name, value in values.items():
        text = json.dumps(value, separators=(",\n", ": "))
        sizes[name] = len(text) + 128 * text.count("\n")
    while sum(sizes.values()) > LIMIT:
        largest = max(sizes, key=lambda name: sizes[name])
        del sizes[largest]
        values[largest] = {"error": f"the largest part of more than {LIMIT} bytes"}


def say(nonce: str, document: "Values") -> None:
    """Write a document in a frame that can be found and verified among other output.

    The frame has the nonce, the size and the SHA-256 of the body: compressed JSON in base64.
    """
    answer = json.dumps(document, ensure_ascii=True, sort_keys=True)
    body = base64.b64encode(zlib.compress(answer.encode("ascii"), 6))
    frame = f"\n<<gpuprov {nonce} {len(body)} {hashlib.sha256(body).hexdigest()}>>\n"
    sys.stdout.buffer.write(frame.encode("ascii") + body + b"\n")
    sys.stdout.buffer.flush()


def collect(parameters: "Values") -> "Values":
    """Return the document of facts: collector -> its value, or {"error": reason}; all run in parallel.

    `parameters` may have `collectors`, their names (all by default), and `seconds`, name -> time-out.
    Commands that still run at the end are killed.
    """
    begun = time.monotonic()
    wanted = parameters.get("collectors") or sorted(COLLECTORS)
    values = {}  # type: Values
    threads = []
    for name in wanted:
        thread = threading.Thread(target=_collect_one, args=(name, parameters, values), name=name)
        thread.daemon = True
        thread.start()
        threads.append(thread)
    for thread in threads:
        allowed = _seconds(thread.name, parameters)
        thread.join(max(0.0, begun + allowed - time.monotonic()))
        values.setdefault(thread.name, {"error": f"no answer in {allowed:g} s"})
    for child in list(CHILDREN):
        stop(child)
    return {
        "schema": "gpuprov.facts/1",
        "host": os.uname().nodename,
        "collected_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(time.monotonic() - begun, 3),
        "collectors": dict(values),
    }


def _seconds(name: str, parameters: "Values") -> float:
    """Return the collector's time-out, as requested or its own."""
    return float(parameters.get("seconds", {}).get(name, COLLECTORS[name][1]))


def _collect_one(name: str, parameters: "Values", values: "Values") -> None:
    """Store a collector's value or {"error": reason} in `values`, unless the name is set already.

    Any exception of the collector is its error.
    """
    try:
        value = COLLECTORS[name][0](parameters)
    except Failed as failed:
        value = {"error": str(failed)}
    except Exception as error:  # noqa: BLE001
        value = {"error": f"{type(error).__name__}: {error}"}
    values.setdefault(name, value)
