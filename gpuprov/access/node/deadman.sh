#!/bin/sh
# gpuprov's dead man's switch, on the node: saves the old SSH and firewall, and restores them unless disarmed.
#
#   deadman.sh arm SECONDS TOKEN LOGIN    save, and restore in SECONDS or at the next boot
#   deadman.sh armed TOKEN                check that the switch is armed for that run
#   deadman.sh disarm TOKEN               a new login worked: keep the current state
#   deadman.sh undo TOKEN WHY             restore the state before that run, also a second time if it made more changes
#   deadman.sh restore WHY                the same for the run that is armed
#
# Exit codes: 0 done, 1 incomplete (call again), 3 not armed (or no longer), 4 cannot be armed, 5 the change was kept;
# the last line on standard error is the reason.
#
# The state is the name of one file with the run's token: armed, kept/TOKEN, restoring, restored. A change of state
# renames the file, which needs no space on a full disk; after a crash it has either the old or the new name.
set -eu
umask 077
PATH=$PATH:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL

home=/var/lib/gpuprov/deadman
units=/etc/systemd/system
selinux=/sys/fs/selinux/enforce
# Copies of files in /etc, if it is another file system than $home: a hard link then restores a file without space.
saved_etc=/etc/.gpuprov-deadman
folders="/etc/ssh /etc/gpuprov /etc/sudoers.d $units/ssh.service.d $units/sshd.service.d $units/ssh.socket.d
$units/nftables.service.d"
files="/etc/sudoers /etc/hosts.allow /etc/hosts.deny /etc/default/ssh /etc/sysconfig/sshd
$units/gpuprov-firewall.service $units/sysinit.target.wants/gpuprov-firewall.service"

. files.sh
. sshd.sh
refuse() {
    echo "$1" >&2
    exit 4
}

exists() {
    [ -e "$1" ] || [ -L "$1" ]
}

# A path with a line break would be read as two, and the second one can be any file: it is left as it is.
below() { # arguments of find: print the paths that it finds, one on a line
    find "$@" ! -path "*
*"
}

run_in() { # state: print the token of the run in it
    cat "$home/$1" 2>/dev/null || :
}

not_armed() { # token
    case $1 in
    "$(run_in restoring)") echo "the time is over, and the old state is being restored" ;;
    "$(run_in restored)") echo "the time was over, and the old state is restored" ;;
    *) echo "the dead man's switch is not armed for $1" ;;
    esac >&2
    exit 3
}

one_at_a_time() { # seconds to wait for the lock
    exec 9<$home
    flock -w "$1" 9
}

home_of() {
    getent passwd "$1" | cut -d: -f6
}

saved_as() { # path: print the path of its copy
    case $1 in
    /etc/*) if [ -d $saved_etc ]; then echo "$saved_etc$1"; else echo "$home/saved$1"; fi ;;
    *) echo "$home/saved$1" ;;
    esac
}

save() { # login
    forget_saved && mkdir -p $home/saved $home/kept || return
    if ! ln "$home/switch" "$saved_etc" 2>/dev/null; then mkdir "$saved_etc" || return; else rm "$saved_etc"; fi
    for login in root "$1"; do
        where=$(home_of "$login")
        for path in "$where" "$where/.ssh"; do
            if [ -d "$path" ]; then stat -c '%a %u:%g %n' "$path" || return; fi
        done
    done >$home/owners || return
    {
        for path in $folders $files; do echo "$path" || return; done
        for login in root "$1"; do
            where=$(home_of "$login")
            for path in "$where/.ssh/authorized_keys" "$where/.ssh/authorized_keys2"; do
                # A folder has no keys, and its user could have root follow the names in it.
                if [ -L "$path" ] || [ ! -d "$path" ]; then echo "$path" || return; fi
            done
        done
    } >$home/paths || return
    : >$home/present || return
    while IFS= read -r path; do
        if exists "$path"; then
            echo "$path" >>$home/present || return
            copy=$(saved_as "$path")
            if ! exists "$copy"; then mkdir -p "${copy%/*}" && cp -a "$path" "$copy" || return; fi
            case $path in
            /etc/*) ;;
            *) if [ -d "$copy" ] && [ ! -L "$copy" ]; then echo "$path is a folder" >&2 && return 1; fi ;;
            esac
        fi
    done <$home/paths
    : >$home/table.nft || return
    if table >/dev/null; then table >$home/table.nft || return; fi
    stated="$(systemctl is-enabled "$(sshd_unit).service") $(systemctl is-active "$(sshd_unit).socket")" || :
    echo "$stated" >$home/sshd && firewalld_state >$home/firewalld && printf '%2000s\n' '' >$home/record
}

firewalld_state() { # print whether it starts at boot, and whether it runs
    enabled=$(systemctl is-enabled firewalld.service 2>/dev/null) || :
    active=$(systemctl is-active firewalld.service) || :
    echo "${enabled:-none} ${active:-none}"
}

forget_saved() {
    rm -rf $saved_etc $home/saved $home/restored
}

table() {
    command -v nft >/dev/null && nft -p list table inet gpuprov 2>/dev/null
}

write_unit() { # name, text; by no here-document: bash may write it to /tmp, which any user can fill
    printf '%s\n' "$2" >"$units/$1"
}

write_units() { # seconds
    # systemd 239 (RHEL 8) rejects Restart= of a oneshot, and only a oneshot holds back the units after it: if the one
    # for the boot fails, the other one tries again. By default that would require sysinit.target, and so start the
    # first one once more.
    # Not the alias of sshd's unit: systemd would keep it apart while the unit is masked, and mix up both after that.
    unit=$(sshd_unit)
    write_unit gpuprov-deadman.service "[Unit]
Description=Restore the old SSH and firewall
DefaultDependencies=no
After=sysinit.target
Before=shutdown.target
Conflicts=shutdown.target
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/sh $home/switch restore \"no new login proved the change in time\"
Restart=on-failure
RestartPreventExitStatus=3
RestartSec=5" || return
    write_unit gpuprov-deadman.timer "[Unit]
Description=Wait for a new login to prove a change of SSH or firewall
[Timer]
OnActiveSec=$1
AccuracySec=100ms" || return
    write_unit gpuprov-deadman-boot.service "[Unit]
Description=Restore the old SSH and firewall after a boot interrupted a change
DefaultDependencies=no
RequiresMountsFor=/var/lib/gpuprov /etc
After=local-fs.target systemd-remount-fs.service
Before=network-pre.target nftables.service firewalld.service gpuprov-firewall.service $unit.service $unit.socket
Before=sysinit.target shutdown.target
Conflicts=shutdown.target
Wants=network-pre.target
ConditionPathExists=|$home/armed
ConditionPathExists=|$home/restoring
OnFailure=gpuprov-deadman.service
[Service]
Type=oneshot
ExecStart=/bin/sh $home/switch restore \"the node was booted before a new login had proved the change\"
SuccessExitStatus=3
[Install]
WantedBy=sysinit.target" || return
    mkdir -p $units/sysinit.target.wants || return
    ln -sf $units/gpuprov-deadman-boot.service $units/sysinit.target.wants/ || return
    systemctl daemon-reload
}

remove_units() {
    rm -f $units/sysinit.target.wants/gpuprov-deadman-boot.service
    systemctl stop --no-block gpuprov-deadman.timer
    rm -f $units/gpuprov-deadman.service $units/gpuprov-deadman.timer $units/gpuprov-deadman-boot.service
    systemctl daemon-reload
}

prepare() { # seconds, token, login: write everything except the file of the state, and synchronise it to the disk
    mv "$0" $home/switch && save "$3" && write_units "$1" && echo "$2" >$home/arming || return
    sync $units $units/sysinit.target.wants $units/gpuprov-deadman* || return
    find $home $(if [ -d $saved_etc ]; then echo $saved_etc; fi) ! -type l -exec sync {} +
}

refuse_without_restart() { # unless sshd would run again after a restart of its unit
    unit=$(sshd_unit).service
    systemctl daemon-reload
    hindrance=$(sshd_hindrance | tr '\n' ' ')
    [ -z "$hindrance" ] || refuse "systemd would not start sshd again after a restart of $unit, because of ${hindrance% };\
 remove that and try again"
    elsewhere=$(sshd_elsewhere | tr '\n' ' ')
    elsewhere=${elsewhere% }
    [ -z "$elsewhere" ] || refuse "sshd listens as process $elsewhere and not as the main process of $unit, whose restart\
 would fail; run \`sudo systemd-run sh -c 'kill $elsewhere; sleep 1; systemctl restart $unit'\` on the node, which\
 also works if this connection ends, and try again"
}

arm() { # seconds, token, login
    [ -d /run/systemd/system ] || refuse "systemd does not run here"
    one_at_a_time 20 || refuse "another run is at work here"
    if exists $home/armed || exists $home/restoring; then
        refuse "another run is changing SSH or firewall here, or was interrupted a moment ago"
    fi
    mkdir -p /run/sshd
    output=$(sshd -t 2>&1) || refuse "sshd -t reports an error in the current files: $output"
    refuse_without_restart
    trap give_up EXIT
    trap 'exit 4' HUP INT TERM
    find $home -maxdepth 2 '(' -name 'switch.*' -mmin +60 -o -path '*/kept/*' -mtime +7 ')' -delete || :
    output=$(prepare "$@" 2>&1) || refuse "the old state cannot be saved: $(echo "$output" | tail -n 1); $(room)"
    mv $home/arming $home/armed && sync $home || refuse "the old state is saved, and $home cannot be written"
    systemctl restart gpuprov-deadman.timer || refuse "the timer that would restore does not start"
    trap - EXIT
}

room() {
    df -h --output=target,avail $home /etc | sed 1d | tr -s ' \n' ' ' | sed 's/^/free space: /; s/ $//'
}

give_up() { # disarm, and remove the units and copies
    set +e
    rm -f $home/armed $home/arming
    if ls $units/gpuprov-deadman* >/dev/null 2>&1; then remove_units; fi
    forget_saved
}

disarm() { # token
    if [ "$(run_in armed)" != "$1" ]; then
        # A run that is continued has one token for several changes: the last one counts.
        case $1 in "$(run_in restoring)" | "$(run_in restored)") not_armed "$1" ;; esac
        if exists "$home/kept/$1"; then return 0; fi
        not_armed "$1"
    fi
    mv $home/armed "$home/kept/$1"
    set +e
    sync $home $home/kept
    remove_units
    forget_saved
    rm -f $home/undone
    return 0
}

same() { # saved, live
    [ "$(stat -c '%f %u:%g' "$1")" = "$(stat -c '%f %u:%g' "$2" 2>/dev/null)" ] || return
    if [ -L "$1" ]; then [ "$(readlink "$1")" = "$(readlink "$2")" ]; else cmp -s "$1" "$2"; fi
}

put_back() { # saved file, live path: replace in one step, and only with a complete copy
    if same "$1" "$2"; then return 0; fi
    (
        enter "${2%/*}" && rm -f .gpuprov-new-???????????????? && new=$(temporary_name) || exit
        if ! ln "$1" "$new" 2>/dev/null && ! copy "$1" "$new"; then
            rm -f "$new"
            exit 1
        fi
        if [ -d "./${2##*/}" ] && [ ! -L "./${2##*/}" ]; then rm -rf "./${2##*/}"; fi
        mv -fT "$new" "./${2##*/}" && echo "$2"
    )
}

copy() { # source, target: never through a link that another user has created there
    cp -a --remove-destination "$1" "$2" && { [ -L "$2" ] || sync "$2"; }
}

own() { # folder, owner, mode: of the entered folder, so that a link cannot redirect chown or chmod
    (enter "$1" && chown "$2" . && chmod "$3" .)
}

# Each of these functions prints the paths that it changes, and continues after a failure.
clear_path() { # path: remove what did not exist before
    if ! grep -qxF -- "$1" $home/present; then
        if exists "$1"; then remove "$1"; fi
    elif [ -d "$1" ] && [ ! -L "$1" ]; then
        before=$(saved_as "$1")
        if [ ! -d "$before" ]; then return 0; fi
        below "$1" -mindepth 1 | {
            status=0
            while IFS= read -r live; do
                if exists "$live" && ! exists "$before${live#"$1"}"; then remove "$live" || status=1; fi
            done
            exit $status
        }
    fi
}

remove() (
    enter "${1%/*}" && rm -rf "./${1##*/}" && echo "$1"
)

new_folder() { # path; with the label of SELinux's policy: sshd may not read a ~/.ssh with the type of the home folder
    mkdir "$1" && echo "$1" || return
    if [ -e $selinux ]; then restorecon "$1" </dev/null >/dev/null || :; fi
}

refill_path() { # path: restore what existed before
    before=$(saved_as "$1")
    if ! exists "$before"; then
        echo "$before is missing, and $1 is not restored" >&2
        return 1
    fi
    if [ ! -d "${1%/*}" ]; then return 0; fi
    below "$before" -type d | while IFS= read -r folder; do
        live=$1${folder#"$before"}
        if [ ! -d "$live" ] || [ -L "$live" ]; then rm -f "$live" && new_folder "$live"; fi
        if [ -d "$live" ] && ! same_owner "$folder" "$live"; then
            own "$live" "$(stat -c %u:%g "$folder")" "$(stat -c %a "$folder")" && echo "$live"
        fi
    done
    below "$before" ! -type d | {
        status=0
        while IFS= read -r file; do put_back "$file" "$1${file#"$before"}" || status=1; done
        exit $status
    }
}

same_owner() {
    [ "$(stat -c '%a %u:%g' "$1")" = "$(stat -c '%a %u:%g' "$2")" ]
}

give_back() {
    status=0
    if [ ! -s $home/present ]; then
        echo "$home/present is missing: the old files are not known" >&2
        return 1
    fi
    while read -r mode owner path; do
        case $path in */.ssh) if [ ! -d "$path" ]; then new_folder "$path"; fi ;; esac
        if [ -d "$path" ] && [ "$(stat -c '%a %u:%g' "$path")" != "$mode $owner" ]; then
            own "$path" "$owner" "$mode" && echo "$path"
        fi
    done <$home/owners
    # Removals first, because they free space.
    while IFS= read -r path; do clear_path "$path" || status=1; done <$home/paths
    while IFS= read -r path; do refill_path "$path" || status=1; done <$home/present
    return $status
}

restore_table() { # in one transaction, without an intermediate state
    if [ "$(table)" = "$(cat $home/table.nft)" ]; then return 0; fi
    { printf 'add table inet gpuprov\ndelete table inet gpuprov\n' && cat $home/table.nft; } | nft -f - && return
    nft delete table inet gpuprov
    return 1
}

start_firewalld() { # as it was; the boot starts it after this
    if ! systemctl cat firewalld.service >/dev/null 2>&1; then return 0; fi
    read -r enabled active <$home/firewalld || return 0
    if [ "$enabled" = enabled ]; then systemctl -q enable firewalld.service || return; fi
    if [ "$active" != active ] || systemctl -q is-active firewalld.service; then return 0; fi
    if [ "$(systemctl is-active sysinit.target)" = active ]; then
        systemctl start firewalld.service
    else
        systemctl start --no-block firewalld.service
    fi
}

start_sshd() { # whether its files were changed
    unit=$(sshd_unit)
    read -r enabled socket <$home/sshd
    systemctl -q unmask "$unit.service"
    if [ "$enabled" = enabled ]; then systemctl -q enable "$unit.service"; fi
    if [ "$(systemctl is-active sysinit.target)" != active ]; then return 0; fi # the boot will start it
    if [ "$socket" = active ]; then unit=$unit.socket; else unit=$unit.service; fi
    if ! "$1" && systemctl -q is-active "$unit"; then return 0; fi
    for pause in 0 1 2; do
        sleep $pause
        systemctl reset-failed "$unit"
        if restart_sshd "$unit"; then return 0; fi
    done
    return 1
}

write_record() { # why; written into space that is already allocated
    if grep -qF " run $(run_in restoring): " $home/undone 2>/dev/null; then return; fi
    line="$(date -u +%FT%TZ) run $(run_in restoring): $1; SSH and firewall are as before"
    echo "$line" | dd of=$home/record conv=notrunc status=none && mv -f $home/record $home/undone
    echo "$line" >>$home/history
    logger -t gpuprov -- "$line"
}

# Every step is tried, even after a failed one. As long as one fails, the caller calls again: the unit, or the
# controller.
restore() { # why
    changed=false
    if mv $home/armed $home/restoring 2>/dev/null; then
        changed=true
    elif ! exists $home/restoring; then
        echo "the dead man's switch is not armed" >&2
        exit 3
    fi
    set +e
    complete=true
    if ! paths=$(give_back); then complete=false; fi
    if [ -n "$paths" ]; then changed=true; fi
    systemctl daemon-reload
    if ! exists $units/gpuprov-firewall.service; then systemctl stop --no-block gpuprov-firewall.service; fi
    start_firewalld || complete=false
    restore_table || complete=false
    start_sshd $changed || complete=false
    $complete || exit 1
    write_record "$1"
    mv $home/restoring $home/restored
    sync $home
    remove_units
    exit 0
}

undo() { # token, why
    case $1 in
    "$(run_in armed)" | "$(run_in restoring)") ;;
    "$(run_in restored)") # the units first: they call again if this fails
        if write_units 30; then systemctl restart gpuprov-deadman.timer; fi || :
        mv $home/restored $home/restoring
        ;;
    *)
        if ! exists "$home/kept/$1"; then not_armed "$1"; fi
        echo "the change was kept" >&2
        exit 5
        ;;
    esac
    restore "$2"
}

case $1 in
arm) arm "$2" "$3" "$4" ;;
armed) if [ "$(run_in armed)" != "$2" ]; then not_armed "$2"; fi ;;
disarm) one_at_a_time 20 && disarm "$2" ;;
undo) one_at_a_time 20 && undo "$2" "$3" ;;
restore) one_at_a_time 20 || :; restore "$2" ;;
*) echo "arm, armed, disarm, undo or restore?" >&2; exit 2 ;;
esac
