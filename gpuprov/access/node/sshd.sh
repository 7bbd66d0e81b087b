# Functions of sshd's unit, for scripts on a node; gpuprov/access/scripts.py puts them in place of `. sshd.sh`.
# The rules are those of plugins/module_utils/gpuprov_sshd.py: systemd can have lost the main process of the unit after
# a mask and an unmask. A restart then starts a second sshd, which fails as the port is in use, and systemd removes
# /run/sshd, without which the first one accepts no login.

sshd_unit() {
    if systemctl cat ssh.service >/dev/null 2>&1; then echo ssh; else echo sshd; fi
}

is_root_s() { # folder of a process, its name: check both, without a program for each, as a user can have thousands
    [ -O "$1" ] && read -r name <"$1/comm" && [ "$name" = "$2" ] || return
    real='' effective='' # it can have ended
    while read -r key real effective _; do
        if [ "$key" = Uid: ]; then break; fi
    done <"$1/status"
    [ "$real $effective" = "0 0" ]
}

other_sshd() { # filter of ss: print `lost` or `elsewhere`, and root's sshd that listens and is not the main process
    unit=$(sshd_unit).service main=
    if systemctl -q is-active "$unit"; then main=$(systemctl show --property=MainPID --value "$unit"); fi
    # Not by `ss -p`, which looks at all open files: a user can have millions. The title of a user's program that is
    # named sshd can have gigabytes.
    sockets=$(ss -Hltne "$1" | grep -v ' uid:[1-9]' | sed -n 's/.* ino:\([0-9]*\) .*/socket:[\1]/p')
    for folder in /proc/[0-9]*; do
        is_root_s "$folder" sshd 2>/dev/null || continue
        case $(tr '\0' ' ' 2>/dev/null <"$folder/cmdline") in
        'sshd: /'* | /*/sshd\ * | sshd\ *) ;;
        *) continue ;; # a session, which forwards a port
        esac
        held=$(find "$folder/fd" -lname 'socket:*' -printf '%l\n' 2>/dev/null) || : # also if it closes another one now
        if [ -z "$held" ] || ! echo "$sockets" | grep -qxF "$held"; then continue; fi
        case " ${main#0} " in
        *" ${folder#/proc/} "* | *" $(sed -n 's/^PPid:[[:space:]]*//p' "$folder/status" 2>/dev/null) "*) continue ;;
        esac
        if grep -q "/$unit\$" "$folder/cgroup"; then how=lost; else how=elsewhere; fi
        echo "$how ${folder#/proc/}"
    done
}

sshd_elsewhere() { # print the processes that listen on sshd's ports and are not of its unit
    ports=$(sshd -T | sed -n 's/^port /or sport = :/p' | tr '\n' ' ')
    other_sshd "${ports#or }" | sed -n 's/^elsewhere //p'
}

sshd_hindrance() { # print the lines of the unit's files that would keep systemd from starting sshd again
    if systemctl -q is-active "$(sshd_unit).socket"; then return; fi
    stated=$(systemctl cat "$(sshd_unit).service" | awk '
        /^# \// { path = $2; number = 0; next }
        { number++ }
        /^(Condition|Assert)[A-Za-z]+=|^ExecStart=./ { print path ":" number " " $0 }')
    conditions=$(echo "$stated" | sed -n 's/^[^ ]* \(Condition.*\|Assert.*\)/\1/p')
    if [ "$conditions" ] && ! said=$(echo "$conditions" | tr '\n' '\0' | xargs -0 systemd-analyze condition 2>&1); then
        echo "$stated" | grep -E '^[^ ]* (Condition|Assert)' || :
        # systemd before 250 cannot check them, and later it makes a folder in /tmp first, which any user can fill.
        echo "$said" | grep -qE '^[A-Za-z]* failed' || echo "($(echo "$said" | head -n 1))"
    fi
    echo "$stated" | grep '^[^ ]* ExecStart=' | tail -n 1 | grep -v 'ExecStart=.*sshd' || :
}

keep_ports() { # until the shell ends no user can listen on sshd's ports, except those for outgoing connections
    start=/proc/sys/net/ipv4/ip_unprivileged_port_start
    first=$(cat $start) highest=$(sshd -T | sed -n 's/^port //p' | sort -n | tail -n 1)
    if [ "${highest:-0}" -lt "${first:-0}" ]; then return; fi
    trap 'echo $first 2>/dev/null >$start' EXIT
    trap 'exit 1' HUP INT TERM
    echo $((highest + 1)) >$start
}

restart_sshd() ( # unit: restart it, after the end of processes that systemd has lost; its ports are free meanwhile
    keep_ports 2>/dev/null || :
    for seconds in 0 1 1 1; do
        sleep $seconds
        lost=$(other_sshd '' | sed -n 's/^lost //p')
        if [ -z "$lost" ]; then break; fi
        kill $lost
    done
    systemctl restart "$1"
)

sshd_has_drop_ins() { # OpenSSH before 8.2 does not know Include
    ! echo 'Include /none' | sshd -t -f /dev/stdin 2>&1 | grep -q 'Bad configuration option: Include'
}

write_first() { # options on standard input, path of a drop-in: write the options that sshd reads first
    if sshd_has_drop_ins; then
        test ! -e "$1" && replace_file "$1" 644
    else # the block of gpuprov_block.py; this OpenSSH has two names for one question
        ! grep -qx '# BEGIN gpuprov' /etc/ssh/sshd_config && {
            echo '# BEGIN gpuprov'
            cat
            printf '%s\n' 'ChallengeResponseAuthentication no' '# END gpuprov'
            cat /etc/ssh/sshd_config
        } | replace_file /etc/ssh/sshd_config 600
    fi
}
