"""Serial numbers of machines and GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuprov.doctor.judge import diagnose
from gpuprov.doctor.units import gpu_serial, gpus_of, machine_serial
from tests.unit.doctor.machines import as_examined, virtual


@pytest.mark.parametrize(
    ("stated", "serial"),
    [
        (["SN-0071/A", "C2", "B3"], "SN-0071/A"),
        (["To Be Filled By O.E.M.", "", "B3X9"], "B3X9"),
        (["Default string", "None", "0123456789"], ""),
        (["0", "00000000", "XXXXXXXX"], ""),
        (["a b", "x\x1b[2J", "y" * 100], ""),
        ([], ""),
    ],
)
def test_a_serial_number_that_is_set(stated: list[str], serial: str) -> None:
    collectors = virtual()
    collectors["host_state"]["serials"] = stated
    assert machine_serial(as_examined(collectors)) == serial
    assert diagnose(as_examined(collectors)).machine == serial


def test_a_machine_that_states_none_or_does_not_answer() -> None:
    collectors = virtual()
    assert machine_serial(as_examined(collectors)) == ""
    del collectors["host_state"], collectors["smi"]
    seen = as_examined(collectors)
    assert (machine_serial(seen), gpus_of(seen)) == ("", ())


def test_a_gpu_without_a_serial_number_is_known_by_its_uuid() -> None:
    gpu = gpus_of(as_examined(virtual()))[0]
    assert gpu_serial(replace(gpu, serial="1650000000000")) == "1650000000000"
    assert gpu_serial(replace(gpu, serial=None)) == gpu.uuid
    assert gpu_serial(replace(gpu, serial="0")) == gpu.uuid
    assert gpu_serial(replace(gpu, serial="a b", uuid=None)) == ""
