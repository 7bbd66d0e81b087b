"""Rules for NCCL's network: ports, rates, packet loss, messages of network cards."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.nccl.inputs import gigabits
from gpuprov.untrusted import shell

LOST_PACKETS = 100
"""Lost packets per second that are a fault (our choice: a few occur on healthy RoCE networks)."""
MANY_FLAPS = 5
"""Number of link failures that is suspect (our choice: maintenance of a switch causes one or two)."""
LIKE_RATE = 0.5
"""Share of the InfiniBand ports' rate from which an Ethernet port counts as part of the fabric for jobs (our
choice: uplinks have a tenth to a quarter of it).
"""


@rule("network.port_down", "D94", source="sichek")
def port_down(seen: Examination) -> Iterator[Fault]:
    """Report ports without a link, if no port is active or an active one has the same link layer.

    More than a hint is only an InfiniBand port that is switched on while other cards have an active port and
    its own has none.
    """
    up = [hca for hca in seen.hcas if hca.state == "ACTIVE"]
    layers, cards = {hca.link_layer for hca in up}, {_card(hca.pci_address) for hca in up}
    physical = seen.raw("host_state")["phys_states"]
    for hca in seen.hcas:
        result = str(physical.get(f"{hca.name}/{hca.port}", "")).rpartition(":")[2].strip()
        # Without a link a port has no meaningful rate: another port with its link layer suffices.
        if hca.state == "DOWN" and (not up or hca.link_layer in layers):
            beside = _card(hca.pci_address) in cards
            wanted = not beside and hca.link_layer == "InfiniBand" and result in ("Polling", "LinkUp", "")
            yield Fault(
                "degraded" if wanted and up else "hint",
                f"{hca.name} port {hca.port} is down ({result or hca.state})",
                (
                    f"/sys/class/infiniband/{hca.name}/ports/{hca.port}: {hca.state}, "
                    f"{result or 'physical state not known'}",
                ),
                "no cable, a dead transceiver, or the switch's port is off"
                if result != "Disabled"
                else "switched off",
                (shell("ibstat {}; check the cable, the transceiver and the switch's port", hca.name),),
            )


def _card(address: str | None) -> str:
    """Return a card's address, without the port: its second port often has no cable."""
    return (address or "").rpartition(".")[0]


@rule("network.no_subnet_manager", "D95", source="sichek")
def waiting_for_a_subnet_manager(seen: Examination) -> Iterator[Fault]:
    """Report InfiniBand ports with a link and without a subnet manager."""
    waiting = [
        f"{hca.name}/{hca.port}"
        for hca in seen.hcas
        if hca.state == "INIT" and hca.link_layer == "InfiniBand"
    ]
    if waiting:
        yield Fault(
            "broken",
            f"InfiniBand ports wait for a subnet manager: {listed(waiting)}",
            tuple(
                f"/sys/class/infiniband/{name.replace('/', '/ports/')}/state: INIT" for name in waiting[:4]
            ),
            "the cable is in and no subnet manager answers in the fabric",
            (shell("one node or switch of the fabric must run one: sudo systemctl enable --now opensm"),),
        )


@rule("network.rate", "D96", source="gpud sichek")
def slower_than_its_twins(seen: Examination) -> Iterator[Fault]:
    """Report active ports that are slower than the majority of the same kind of card."""
    alike: dict[tuple[str | None, str], list[tuple[str, float, str]]] = defaultdict(list)
    device = {each.address: each.device for each in seen.pci}
    for hca in seen.hcas:
        rate = gigabits(hca.rate)
        if hca.state == "ACTIVE" and rate:
            alike[device.get(hca.pci_address or ""), hca.link_layer].append(
                (f"{hca.name}/{hca.port}", rate, hca.rate)
            )
    for ports in alike.values():
        counts = Counter(rate for _, rate, _ in ports)
        best = max(counts)
        for name, rate, text in ports:
            if rate < best and counts[best] > counts[rate]:
                yield Fault(
                    "degraded",
                    f"{name} runs at {rate:g} Gbit/s, ports of the same kind at {best:g}",
                    (f"/sys/class/infiniband/{name.replace('/', '/ports/')}/rate: {text}",),
                    "negotiated down: cable, transceiver or the switch's port",
                    (shell("replace the cable; mlxlink -d DEVICE (speed, recommendation)"),),
                )


@rule("network.errors", "D97", "D99", source="aznhc oci-dr choice")
def port_errors(seen: Examination) -> Iterator[Fault]:
    """Report error counters of RDMA ports that increase now (lost packets from `LOST_PACKETS` per second),
    and links that failed at least `MANY_FLAPS` times.
    """
    for name, by in seen.growth.items():
        words = name.split(" ")
        if words[0] != "rdma":
            continue
        few = by < LOST_PACKETS
        lossy = words[2] in (
            "out_of_sequence",
            "packet_seq_err",
            "rnr_nak_retry_err",
            "port_xmit_discards",
            "roce_adp_retrans",
            "local_ack_timeout_err",
        )
        if lossy and few:
            continue
        yield Fault(
            "degraded",
            f"{words[1]}: {words[2]} grows by {by} a second",
            (f"/sys/class/infiniband/{words[1]} {words[2]}: +{by} a second",),
            "packets are lost: congestion without flow control (PFC, ECN) from end to end, or a full receiver"
            if lossy
            else "signal quality: cable, transceiver",
            (
                shell("mlnx_qos -i INTERFACE; the switch's PFC and ECN; settings of DSCP")
                if lossy
                else shell("replace the cable"),
            ),
        )
    for name, count in seen.counters.items():
        words = name.split(" ")
        if words[0] == "rdma" and words[2] == "link_downed" and count >= MANY_FLAPS:
            yield Fault(
                "risk",
                f"{words[1]}: its link went down {count} times since the card was started",
                (f"/sys/class/infiniband/{words[1]} link_downed: {count}",),
                "a cable or transceiver that fails intermittently, or maintenance of the switch",
                (shell("replace the cable if this continues"),),
            )


@rule("network.flaps", "D97", source="aznhc choice")
def flaps(seen: Examination) -> Iterator[Fault]:
    """Report at least `MANY_FLAPS` link failures of Mellanox cards in the log within a day."""
    lines = seen.log_lines(r"mlx[45].*(?:[Ll]ink (?:down|DOWN)|lost carrier)")
    recent = [line for line in lines if line.age_s < 24 * 3600]
    if len(recent) >= MANY_FLAPS:
        yield Fault(
            "degraded",
            f"network links went down {len(recent)} times within a day",
            tuple(line.dated(120) for line in recent[-3:]),
            "a cable or transceiver",
            (shell("replace it: the interface is named in the log"),),
        )


@rule("network.card", "D98", source="gpud charm-2635")
def card_complaints(seen: Examination) -> Iterator[Fault]:
    """Report what the network card's driver logged: stopped firmware, too much heat, too little power, a bad
    module.
    """
    if stopped := seen.log_lines(r"mlx[45]_core .*device's health compromised", r"mlx[45]_core .*synd 0x"):
        yield Fault(
            "degraded",
            "the firmware of a network card has stopped",
            tuple(line.dated(140) for line in stopped[-3:]),
            "a defect of the firmware or the card; the driver may have started it again",
            (
                shell("update the card's firmware: sudo mlxfwmanager, or the server's maker"),
                shell("power off and on if the port is gone; have the card replaced if this recurs"),
            ),
        )
    lines = seen.log_lines(
        r"insufficient power on the PCIe slot", r"Port module event.*(?:[Hh]igh [Tt]emperature|error)"
    )
    if lines:
        heat = "emperature" in lines[-1].text
        yield Fault(
            "degraded",
            "a network card's transceiver is too hot"
            if heat
            else "a network card has too little power or a bad module",
            tuple(line.dated(140) for line in lines[-2:]),
            "airflow at the card" if heat else "the slot's power, or the transceiver",
            (shell("airflow; another transceiver") if heat else shell("another slot; another transceiver"),),
        )


@rule("network.mixed", "D128", source="nccl-302 nccl-doc", after=("network.port_down",))
def mixed_fabrics(seen: Examination) -> Iterator[Fault]:
    """Report active ports of InfiniBand and of RoCE with at least `LIKE_RATE` of their rate, on machines with
    several GPUs, if no variable selects one kind for NCCL.

    A slower Ethernet port is a server's uplink, which NCCL leaves out by itself.
    """
    rates: dict[str, dict[str, float]] = defaultdict(dict)
    for hca in seen.hcas:
        if hca.state == "ACTIVE" and (rate := gigabits(hca.rate)):
            rates[hca.link_layer][f"{hca.name}/{hca.port}"] = rate
    infiniband, ethernet = rates.get("InfiniBand", {}), rates.get("Ethernet", {})
    least = min(infiniband.values(), default=0)
    alike = [name for name, rate in ethernet.items() if rate >= LIKE_RATE * least]
    if len(seen.gpus) < 2 or not infiniband or not alike or _selected(seen):
        return
    yield Fault(
        "risk",
        f"ports of two fabrics are active: InfiniBand {listed(list(infiniband))}, Ethernet {listed(alike)}",
        (
            *(
                f"/sys/class/infiniband/{name.replace('/', '/ports/')}/link_layer: InfiniBand"
                for name in list(infiniband)[:2]
            ),
            *(
                f"/sys/class/infiniband/{name.replace('/', '/ports/')}/link_layer: Ethernet"
                for name in alike[:2]
            ),
            "/etc/nccl.conf, logins: no NCCL_IB_HCA",
        ),
        "NCCL takes all of them and connects ports of unlike fabrics between nodes: ibv_modify_qp fails with "
        "Invalid argument, or no such device",
        (
            shell("echo NCCL_IB_HCA=={} | sudo tee -a /etc/nccl.conf", ",".join(_hosts(infiniband))),
            shell("gpuprov nccl derive HOST prints what this machine needs"),
        ),
        "settings.nccl",
    )


def _hosts(ports: dict[str, float]) -> list[str]:
    """Return the devices of ports `mlx5_0/1`, in the form of NCCL_IB_HCA: `mlx5_0:1`."""
    return [name.replace("/", ":") for name in ports][:8]


def _selected(seen: Examination) -> bool:
    """Return whether a variable selects ports for NCCL, or keeps it from all of them."""
    names = ("NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_NET")
    stated = [seen.raw("nccl").get("conf") or ""] if "nccl" not in seen.missing else []
    logins = seen.environment.values() if "environment" not in seen.missing else ()
    return any(name in text for text in stated for name in names) or any(
        name in values for values in logins for name in names
    )
