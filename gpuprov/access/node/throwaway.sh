#!/bin/sh
# Temporary key, valid only for logins from this machine to itself and for some minutes: it tests that sshd accepts
# logins.
#
#   throwaway.sh add LOGIN SECONDS KIND KEY    add it; print `file`, `made` (a created path), `listens`, `source` (of a
#                                              login)
#   throwaway.sh remove FILE KEY [MADE...]     remove its line, and the created paths
#   throwaway.sh hostkeys                      print the public host keys
#
# Exit codes: 0 done, 4 failed; the last line on standard error is the reason.
set -eu
PATH=$PATH:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL

. keys.sh
. sshd.sh
refuse() {
    echo "$1" >&2
    exit 4
}

effective() { # login: print sshd's options for it, from its current files
    mkdir -p /run/sshd
    sshd -T -C "user=$1,host=localhost,addr=127.0.0.1,laddr=127.0.0.1,lport=22" 2>/dev/null
}

add() { # login, seconds, kind, key
    account=$(getent passwd "$1") || refuse "there is no account $1 here"
    # Not by `echo`, which would end at `\c` in the user's full name.
    home=$(printf '%s\n' "$account" | cut -d: -f6)
    owner=$(printf '%s\n' "$account" | cut -d: -f3,4)
    options=$(effective "$1") || refuse "sshd -T fails for $1: check that sshd is installed and its files are valid"
    file=$(echo "$options" | sed -n 's/^authorizedkeysfile //p' | cut -d' ' -f1 | sed "s#%h#$home#g; s#%u#$1#g; s#%%#%#g")
    case $file in
    none | "") refuse "sshd reads no file of keys for $1 (AuthorizedKeysFile none)" ;;
    /*) ;;
    *) file=$home/$file ;;
    esac
    until=$(date -d "+$2 seconds" +%Y%m%d%H%M%S)
    own=$(ip -o addr show 2>/dev/null | sed -n 's#.* inet6\{0,1\} \([0-9a-f.:]*\)/.*#\1#p' | tr '\n' ',')
    edit_keys add "$file" "$owner" "restrict,from=\"${own}127.0.0.1,::1\",expiry-time=\"$until\" $3 $4 gpuprov"
    echo "file $file"
    echo "$options" | sed -n 's/^listenaddress /listens /p'
    sources "$own" "$(echo "$options" | sed -n 's/^port /or sport = :/p' | tr '\n' ' ')" || :
}

sources() { # own addresses, filter of ss after `or`: print the source addresses of the current logins of others
    rows=$(ss -Htne state established "${2#or }")
    without=" $(strangers | tr '\n' ' ')"
    still=$(ss -Htne state established "${2#or }") # a connection that has ended meanwhile is in no process
    printf '%s\n' "$rows" | while read -r _ _ _ peer rest; do
        case $rest in *ino:[1-9]*) ;; *) continue ;; esac # sshd has not accepted it yet
        number=${rest#*ino:} number=${number%% *}
        case $without in *" socket:[$number] "*) continue ;; esac
        address=${peer%:*} address=${address#\[} address=${address%\]} address=${address#::ffff:}
        case ,$1 in *",$address,"*) continue ;; esac # any user may log in from here, and the firewall lets that pass
        case $still in *" ino:$number "*) echo "source ${peer%:*}" ;; esac
    done
}

strangers() { # print the sockets of sshd's connections without a login, which anybody on the network can keep open
    for folder in /proc/[0-9]*; do
        name='' parent='' # it can have ended
        read -r name <"$folder/comm" || continue
        case $name in sshd | sshd-session | sshd-auth) ;; *) continue ;; esac
        while read -r key parent; do [ "$key" != PPid: ] || break; done <"$folder/status" || continue
        # Others can have such a name: a user can have thousands of them, with titles of gigabytes.
        is_root_s "/proc/$parent" sshd || is_root_s "/proc/$parent" sshd-session || continue
        case $(head -c 200 "$folder/cmdline" | tr '\0' ' ' | sed 's/ *$//') in
        *': [accepted]' | *' [net]' | *': [session-auth'*) find "$folder/fd" -lname 'socket:*' -printf '%l\n' ;;
        esac
    done 2>/dev/null
}

case $1 in
add) add "$2" "$3" "$4" "$5" ;;
remove) edit_keys "$@" ;;
hostkeys) cat /etc/ssh/ssh_host_*_key.pub ;;
*) echo "add, remove or hostkeys?" >&2; exit 2 ;;
esac
