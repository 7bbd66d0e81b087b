#!/bin/sh
# gpuprov's dead man's switch, on the node: keeps the old SSH and firewall, and gives them back unless told not to.
#
#   deadman.sh arm SECONDS TOKEN LOGIN    save, and restore in SECONDS or at the next boot
#   deadman.sh disarm TOKEN               a new login worked: keep what is there now
#   deadman.sh restore WHY                give back what was saved; does nothing when not armed
#   deadman.sh again TOKEN                give it back once more, if that run's change was undone while it went on
#
# Exit codes: 0 done, 3 not armed (or no more), 4 cannot be armed; one line on standard error says why.
# Restoring takes no disk space where saved and live files share a file system: files are linked, not copied.
set -eu
umask 077
PATH=$PATH:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL

home=/var/lib/gpuprov/deadman
saved=$home/saved
units=/etc/systemd/system
folders="/etc/ssh /etc/gpuprov /etc/sudoers.d $units/ssh.service.d $units/sshd.service.d $units/ssh.socket.d"
files="/etc/sudoers /etc/hosts.allow /etc/hosts.deny /etc/default/ssh
$units/gpuprov-firewall.service $units/sysinit.target.wants/gpuprov-firewall.service"

refuse() {
    echo "$1" >&2
    exit 4
}

exists() {
    [ -e "$1" ] || [ -L "$1" ]
}

sshd_unit() {
    if systemctl cat ssh.service >/dev/null 2>&1; then echo ssh; else echo sshd; fi
}

home_of() {
    getent passwd "$1" | cut -d: -f6
}

save() {
    rm -rf "$saved" "$home/restored"
    mkdir -p "$saved" || return
    for login in root "$1"; do
        where=$(home_of "$login")
        for path in "$where" "$where/.ssh"; do
            if [ -d "$path" ]; then stat -c '%a %u:%g %n' "$path" || return; fi
        done
    done >"$home/owners" || return
    for path in $folders $files; do echo "$path"; done >"$home/paths" || return
    for login in root "$1"; do
        where=$(home_of "$login")
        printf '%s\n' "$where/.ssh/authorized_keys" "$where/.ssh/authorized_keys2"
    done >>"$home/paths" || return
    while IFS= read -r path; do
        if exists "$path" && ! exists "$saved$path"; then
            mkdir -p "$saved${path%/*}" && cp -a "$path" "$saved${path%/*}/" || return
        fi
    done <"$home/paths"
    : >"$home/table.nft" || return
    if table >/dev/null; then table >"$home/table.nft" || return; fi
}

table() {
    command -v nft >/dev/null && nft list table inet gpuprov 2>/dev/null
}

write_units() {
    cat >$units/gpuprov-deadman.service <<EOF
[Unit]
Description=Give back SSH and firewall as they were
[Service]
Type=oneshot
ExecStart=/bin/sh $home/switch restore "no new login proved the change in time"
Restart=on-failure
RestartSec=5
EOF
    cat >$units/gpuprov-deadman.timer <<EOF
[Unit]
Description=Wait for a new login to prove a change of SSH or firewall
[Timer]
OnActiveSec=$1
AccuracySec=100ms
EOF
    cat >$units/gpuprov-deadman-boot.service <<EOF
[Unit]
Description=Give back SSH and firewall as they were before a change that a boot cut short
DefaultDependencies=no
RequiresMountsFor=/var/lib/gpuprov /etc
After=local-fs.target systemd-remount-fs.service
Before=network-pre.target gpuprov-firewall.service ssh.service sshd.service ssh.socket sysinit.target shutdown.target
Conflicts=shutdown.target
Wants=network-pre.target
ConditionPathExists=|$home/armed
ConditionPathExists=|$home/restoring
[Service]
Type=oneshot
ExecStart=/bin/sh $home/switch restore "the node was booted before a new login had proved the change"
[Install]
WantedBy=sysinit.target
EOF
    systemctl daemon-reload
    mkdir -p $units/sysinit.target.wants
    ln -sf $units/gpuprov-deadman-boot.service $units/sysinit.target.wants/
}

remove_units() {
    rm -f $units/sysinit.target.wants/gpuprov-deadman-boot.service
    systemctl stop --no-block gpuprov-deadman.timer
    rm -f $units/gpuprov-deadman.service $units/gpuprov-deadman.timer $units/gpuprov-deadman-boot.service
    systemctl daemon-reload
}

arm() {
    [ -d /run/systemd/system ] || refuse "systemd does not run here"
    if exists $home/armed || exists $home/restoring; then
        refuse "another run is changing SSH or firewall here, or was cut short a moment ago"
    fi
    mkdir -p /run/sshd
    told=$(sshd -t 2>&1) || refuse "sshd -t is not content with what is there already: $told"
    save "$3" || refuse "no room to save the old state in $home"
    echo "$(systemctl is-enabled "$(sshd_unit).service")" >"$home/enabled"
    echo "$(systemctl is-active "$(sshd_unit).socket")" >"$home/socket"
    write_units "$1" || refuse "the units that would restore the old state cannot be written"
    sync -f $home
    echo "$2" >$home/armed
    systemctl restart gpuprov-deadman.timer || {
        rm -f $home/armed
        refuse "the timer does not start"
    }
}

disarm() {
    if [ "$(cat $home/armed 2>/dev/null)" != "$1" ] || ! mv $home/armed $home/disarmed 2>/dev/null; then
        if exists $home/restoring; then why="the time is over, and the old state is coming back"; fi
        echo "not armed: ${why:-$(cat $home/undone 2>/dev/null || echo 'disarmed already')}" >&2
        exit 3
    fi
    remove_units
    rm -rf "$saved" $home/disarmed $home/undone $home/restored
}

put_back() { # saved file, live path: in one step, without space where a link does it
    rm -f "$2.gpuprov"
    ln "$1" "$2.gpuprov" 2>/dev/null || cp -a "$1" "$2.gpuprov"
    mv -fT "$2.gpuprov" "$2"
}

restore_path() {
    if [ -d "$1" ] && [ ! -L "$1" ]; then
        find "$1" -mindepth 1 | while IFS= read -r live; do
            if ! exists "$saved$live"; then rm -rf "$live"; fi
        done
    elif exists "$1" && ! exists "$saved$1"; then
        rm -f "$1"
    fi
    if ! exists "$saved$1"; then
        if [ -d "$1" ]; then rmdir "$1"; fi
        return 0
    fi
    find "$saved$1" -type d | while IFS= read -r folder; do
        live=${folder#"$saved"}
        if [ ! -d "$live" ]; then rm -f "$live"; mkdir -p "$live"; fi
        chown --reference="$folder" "$live"
        chmod --reference="$folder" "$live"
    done
    find "$saved$1" ! -type d | while IFS= read -r file; do put_back "$file" "${file#"$saved"}"; done
}

restore_table() {
    if table >/dev/null; then nft delete table inet gpuprov; fi
    if [ -s $home/table.nft ]; then nft -f $home/table.nft; fi
}

restart_sshd() {
    unit=$(sshd_unit)
    systemctl -q unmask "$unit.service"
    if grep -qx enabled $home/enabled; then systemctl -q enable "$unit.service"; fi
    if [ "$(systemctl is-active sysinit.target)" != active ]; then return 0; fi # the boot will start it
    systemctl reset-failed "$unit.service"
    if grep -qx active $home/socket; then unit=$unit.socket; else unit=$unit.service; fi
    systemctl restart "$unit"
}

# Every step is tried, whatever came of the one before; what decides is whether sshd runs again. If it does not, the
# unit that called us calls again.
restore() {
    if ! mv $home/armed $home/restoring 2>/dev/null && ! exists $home/restoring; then exit 3; fi
    set +e
    while read -r mode owner path; do
        if [ -d "$path" ]; then chown "$owner" "$path"; chmod "$mode" "$path"; fi
    done <$home/owners
    while IFS= read -r path; do restore_path "$path"; done <$home/paths
    systemctl daemon-reload
    if ! exists $units/gpuprov-firewall.service; then systemctl stop --no-block gpuprov-firewall.service; fi
    restore_table
    restart_sshd || exit 1
    echo "$(date -u +%FT%TZ) run $(cat $home/restoring): $1; SSH and firewall are as before" >$home/undone
    cat $home/undone >>$home/history
    logger -t gpuprov -- "$(cat $home/undone)"
    mv $home/restoring $home/restored
    remove_units
}

case $1 in
arm) arm "$2" "$3" "$4" ;;
disarm) disarm "$2" ;;
restore) restore "$2" ;;
again)
    if [ "$(cat $home/restored 2>/dev/null)" = "$2" ]; then
        mv $home/restored $home/restoring
        restore "$(sed 's/^.* run [^ ]*: //; s/; SSH and firewall.*//' $home/undone)"
    fi
    ;;
*) echo "arm, disarm, restore or again?" >&2; exit 2 ;;
esac
