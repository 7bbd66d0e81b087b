"""Files with which the played system's sshd reads its options as in RHEL's family; the program is Debian's.

A drop-in includes the crypto policy; the unit is sshd.service and reads /etc/sysconfig/sshd. RHEL 8's OpenSSH
8.0 has no drop-ins: its unit passes the policy on the command line, and the program, Debian's, does not know
later keywords.
"""

from __future__ import annotations

from gpuprov_lab.releases import Release

POLICY = "etc/crypto-policies/back-ends/opensshserver.config"
CONFIG = """\
Include /etc/ssh/sshd_config.d/*.conf
AuthorizedKeysFile .ssh/authorized_keys
Subsystem sftp /usr/libexec/openssh/sftp-server
"""
INCLUDED = f"Include /{POLICY}\n"
REDHAT = """\
SyslogFacility AUTHPRIV
KbdInteractiveAuthentication no
GSSAPIAuthentication yes
GSSAPICleanupCredentials no
UsePAM yes
X11Forwarding yes
PrintMotd no
"""
ALGORITHMS = {
    "Ciphers": "aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes256-ctr,aes128-gcm@openssh.com,"
    "aes128-ctr",
    "KexAlgorithms": "curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256,ecdh-sha2-nistp384,"
    "ecdh-sha2-nistp521,diffie-hellman-group-exchange-sha256,diffie-hellman-group14-sha256,"
    "diffie-hellman-group16-sha512,diffie-hellman-group18-sha512",
    "PubkeyAcceptedAlgorithms": "ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,ssh-ed25519,"
    "rsa-sha2-256,rsa-sha2-512",
    "CASignatureAlgorithms": "ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,ssh-ed25519,"
    "rsa-sha2-256,rsa-sha2-512",
}
"""Algorithms of the policy DEFAULT but MACs, in the order of RHEL 9; no certificates and security keys."""
OLD_CONFIG = """\
HostKey /etc/ssh/ssh_host_rsa_key
HostKey /etc/ssh/ssh_host_ecdsa_key
HostKey /etc/ssh/ssh_host_ed25519_key
SyslogFacility AUTHPRIV
PermitRootLogin yes
AuthorizedKeysFile .ssh/authorized_keys
PasswordAuthentication yes
ChallengeResponseAuthentication no
GSSAPIAuthentication yes
GSSAPICleanupCredentials no
UsePAM yes
X11Forwarding yes
PrintMotd no
Subsystem sftp /usr/libexec/openssh/sftp-server
"""
"""sshd_config of RHEL 8, without its comments and AcceptEnv."""
LATER_KEYWORDS = {
    "include": "",
    "pubkeyacceptedalgorithms": "pubkeyacceptedkeytypes",
    "hostbasedacceptedalgorithms": "hostbasedacceptedkeytypes",
    **dict.fromkeys(("securitykeyprovider", "pubkeyauthoptions", "logverbose", "modulifile"), ""),
    **dict.fromkeys(("persourcemaxstartups", "persourcenetblocksize", "requiredrsasize"), ""),
    **dict.fromkeys(("channeltimeout", "unusedconnectiontimeout"), ""),
}
"""Keywords of sshd later than OpenSSH 8.0, with their former names."""
NUL = r"\x00"
UNIT = """\
[Unit]
Description=OpenSSH server daemon
After=network.target

[Service]
Type=notify
{environment}EnvironmentFile=-/etc/sysconfig/sshd
ExecStart=/usr/sbin/sshd -D {arguments}
ExecReload=/bin/kill -HUP $MAINPID
KillMode=process
Restart=on-failure
RestartSec=42s
RuntimeDirectory=sshd
RuntimeDirectoryMode=0755

[Install]
WantedBy=multi-user.target
"""
SOCKET = """\
[Unit]
Description=OpenSSH Server Socket
Conflicts=sshd.service

[Socket]
ListenStream=22
Accept=yes

[Install]
WantedBy=sockets.target
"""


def files(release: Release) -> dict[str, str]:
    """Return path → content of sshd's files."""
    names = {**ALGORITHMS, "MACs": ",".join(release.macs)}
    found = {
        "etc/crypto-policies/config": "DEFAULT\n",
        "etc/sysconfig/sshd": "# OPTIONS are arguments of sshd.\n",
        "usr/lib/systemd/system/sshd.socket": SOCKET,
    }
    if not release.policy_file:
        options = " ".join(
            f"-o{LATER_KEYWORDS.get(name.lower(), name)}={each}" for name, each in names.items()
        )
        unit = UNIT.format(environment=f"EnvironmentFile=-/{POLICY}\n", arguments="$OPTIONS $CRYPTO_POLICY")
        return {
            **found,
            "etc/ssh/sshd_config": OLD_CONFIG + release.sshd_options,
            POLICY: f"CRYPTO_POLICY='{options}'\n",
            "usr/lib/systemd/system/sshd.service": unit,
        }
    drop_ins = {release.policy_file: INCLUDED}
    drop_ins["50-redhat.conf"] = drop_ins.get("50-redhat.conf", "") + REDHAT
    return {
        **found,
        "etc/ssh/sshd_config": CONFIG + release.sshd_options,
        **{f"etc/ssh/sshd_config.d/{name}": text for name, text in drop_ins.items()},
        POLICY: "".join(f"{keyword} {each}\n" for keyword, each in names.items()),
        "usr/lib/systemd/system/sshd.service": UNIT.format(environment="", arguments="$OPTIONS"),
    }


def play(release: Release) -> str:
    """Return shell commands that put the files into effect, after they are there."""
    return PLAY if release.policy_file else PLAY + _renamed()


def _renamed() -> str:
    """Return shell commands that rename the later keywords in sshd, in their lengths: it refuses them, and
    `sshd -T` does not print them. The folder of drop-ins goes, too.
    """
    edits = []
    for keyword, former in LATER_KEYWORDS.items():
        name = former or f"-{keyword[1:]}"
        rest = NUL * (len(keyword) - len(name))
        edits.append(f"-e 's/{NUL}{keyword}{NUL}/{NUL}{name}{rest}{NUL}/'")
    return f"rmdir /etc/ssh/sshd_config.d\nLC_ALL=C sed -i {' '.join(edits)} /usr/sbin/sshd\n"


PLAY = """\
systemctl disable ssh.service
rm /lib/systemd/system/ssh.service /lib/systemd/system/ssh.socket
rm -f /lib/systemd/system/ssh@.service /lib/systemd/system/rescue-ssh.target /etc/default/ssh /etc/init.d/ssh
mkdir -p /usr/libexec/openssh
ln -s /usr/lib/openssh/sftp-server /usr/libexec/openssh/sftp-server
systemctl enable sshd.service
"""
