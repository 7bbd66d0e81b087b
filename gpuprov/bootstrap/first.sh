# Script of `gpuprov bootstrap`, run on a node as root. It prints a line for each change; another run changes
# nothing. Variables set before it: admin, keys (one public key per line), wait (seconds for cloud-init), python (the
# program that Ansible's modules run in, and its package).
set -eu
PATH=$PATH:/usr/sbin:/sbin
LC_ALL=C
DEBIAN_FRONTEND=noninteractive
export PATH LC_ALL DEBIAN_FRONTEND

. files.sh
. keys.sh
fail() {
    echo "failed $1"
    exit 1
}

update() { # apt-get can wait for dpkg's lock, but not for the lock of its package lists
    until=$(($(date +%s) + wait))
    while ! output=$(apt-get -q update 2>&1); do
        case $output in *"Could not get lock"*) ;; *) break ;; esac
        [ "$(date +%s)" -lt "$until" ] || break
        sleep 3
    done
    echo "$output"
}

install() {
    if command -v apt-get; then
        update
        apt-get -q -y -o DPkg::Lock::Timeout="$wait" install --no-install-recommends "$1"
    elif command -v dnf; then
        dnf -q -y install "$1"
    elif command -v zypper; then
        zypper -q -n install "$1"
    else
        echo "neither apt-get nor dnf nor zypper is installed"
        false
    fi
}

have() { # arguments: program, package
    command -v "$1" >/dev/null && return
    output=$(install "$2" 2>&1) || fail "$2 cannot be installed: $(echo "$output" | tail -n 1)"
    echo "changed $2 installed"
}

if command -v cloud-init >/dev/null; then
    code=0
    timeout "$wait" cloud-init status --wait >/dev/null 2>&1 || code=$?
    [ $code != 124 ] || fail "cloud-init is still at work after $wait s"
    [ $code = 0 ] || echo "note cloud-init ended with errors: cloud-init status --long"
fi
have "$python" "$python"

if ! id "$admin" >/dev/null 2>&1; then
    useradd --create-home --shell /bin/bash --password '*' "$admin"
    echo "changed account $admin made"
fi
if [ "$admin" != root ]; then
    have sudo sudo
    if ! runuser -u "$admin" -- sudo -n true 2>/dev/null; then
        # Quoted: sudoers reads ALL as everybody, OPS as an alias, and DOMAIN\user as DOMAINuser.
        rule="\"$admin\" ALL=(ALL:ALL) NOPASSWD: ALL"
        file=/etc/sudoers.d/90-gpuprov
        output=$(printf '%s\n' "$rule" | visudo -cqf /dev/stdin 2>&1) ||
            fail "visudo rejects the rule for $admin: $output"
        output=$(printf '%s\n' "$rule" | replace_file $file 440 2>&1) ||
            fail "$file cannot be written: $output"
        runuser -u "$admin" -- sudo -n true || fail "sudo asks $admin for a password in spite of $file"
        echo "changed sudo for $admin"
    fi
fi

account=$(getent passwd "$admin")
# Not by `echo`, which would interpret `\c` in the user's full name.
file=$(printf '%s\n' "$account" | cut -d: -f6)/.ssh/authorized_keys
owner=$(printf '%s\n' "$account" | cut -d: -f3,4)
set -f
IFS='
'
# shellcheck disable=SC2086 # one key per line
output=$(edit_keys authorize "$file" "$owner" "$admin" $keys 2>&1) ||
    fail "$admin's keys cannot be written: $(echo "$output" | tail -n 1)"
unset IFS
set +f
[ -z "$output" ] || echo "$output"

mkdir -p /run/sshd
sshd -T -C "user=$admin,host=localhost,addr=127.0.0.1,laddr=127.0.0.1,lport=22" |
    grep -qxE '(password|kbdinteractive|challengeresponse)authentication yes' && echo "passwords on"
for public in /etc/ssh/ssh_host_*_key.pub; do
    [ ! -f "$public" ] || echo "hostkey $(cut -d' ' -f1,2 "$public")"
done
echo "done"
