"""Files with which the played system's sshd reads its options as on RHEL 9; the program is Debian's.

`50-redhat.conf` includes the crypto policy; the unit is sshd.service and reads /etc/sysconfig/sshd.
"""

from __future__ import annotations

POLICY = "etc/crypto-policies/back-ends/opensshserver.config"
CONFIG = """\
Include /etc/ssh/sshd_config.d/*.conf
AuthorizedKeysFile .ssh/authorized_keys
Subsystem sftp /usr/libexec/openssh/sftp-server
"""
REDHAT = f"""\
Include /{POLICY}
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
    "MACs": "hmac-sha2-256-etm@openssh.com,hmac-sha1-etm@openssh.com,umac-128-etm@openssh.com,"
    "hmac-sha2-512-etm@openssh.com,hmac-sha2-256,hmac-sha1,umac-128@openssh.com,hmac-sha2-512",
    "KexAlgorithms": "curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256,ecdh-sha2-nistp384,"
    "ecdh-sha2-nistp521,diffie-hellman-group-exchange-sha256,diffie-hellman-group14-sha256,"
    "diffie-hellman-group16-sha512,diffie-hellman-group18-sha512",
    "PubkeyAcceptedAlgorithms": "ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,ssh-ed25519,"
    "rsa-sha2-256,rsa-sha2-512",
    "CASignatureAlgorithms": "ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,ssh-ed25519,"
    "rsa-sha2-256,rsa-sha2-512",
}
"""Algorithms of the policy DEFAULT, in the order of RHEL 9, without certificates and security keys."""
UNIT = """\
[Unit]
Description=OpenSSH server daemon
After=network.target

[Service]
Type=notify
EnvironmentFile=-/etc/sysconfig/sshd
ExecStart=/usr/sbin/sshd -D $OPTIONS
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
FILES = {
    "etc/ssh/sshd_config": CONFIG,
    "etc/ssh/sshd_config.d/50-redhat.conf": REDHAT,
    POLICY: "".join(f"{keyword} {names}\n" for keyword, names in ALGORITHMS.items()),
    "etc/crypto-policies/config": "DEFAULT\n",
    "etc/sysconfig/sshd": "# OPTIONS are arguments of sshd.\n",
    "usr/lib/systemd/system/sshd.service": UNIT,
    "usr/lib/systemd/system/sshd.socket": SOCKET,
}
"""Path → content."""
PLAY = """\
systemctl disable ssh.service
rm /lib/systemd/system/ssh.service /lib/systemd/system/ssh.socket
rm -f /lib/systemd/system/ssh@.service /lib/systemd/system/rescue-ssh.target /etc/default/ssh /etc/init.d/ssh
mkdir -p /usr/libexec/openssh
ln -s /usr/lib/openssh/sftp-server /usr/libexec/openssh/sftp-server
systemctl enable sshd.service
"""
"""Shell commands that put them into effect, after the files are there."""
