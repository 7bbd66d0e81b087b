# Functions that replace files, for scripts on a node; gpuprov/access/scripts.py puts them in place of `. files.sh`.
# The rules are those of plugins/module_utils/gpuprov_replace.py: a temporary file in the same folder gets the owner,
# mode and attributes of the old file, is synchronised to the disk and renamed. Nothing is written through a link.

enter() { # folder: cd to it, unless a user other than root may have replaced it with a link to a folder of others
    above=$(cd -P -- "${1%/*}/" && pwd -P) && cd -P -- "$1/" || return
    case $(pwd -P) in "${above%/}/${1##*/}") return 0 ;; esac
    whose=$(stat -c %u "$above") || return
    [ "$whose" = 0 ] || [ "$whose" = "$(stat -c %u .)" ] || {
        echo "$1 leads to a folder of another user" >&2
        return 1
    }
}

temporary_name() {
    echo ".gpuprov-new-$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')"
}

replace_file() ( # path, mode of a new file: replace its content with standard input; on failure it is unchanged
    enter "${1%/*}" || exit
    rm -f .gpuprov-new-????????????????
    new=$(temporary_name) && (umask 077 && set -C && : >"$new") || exit
    trap 'rm -f "$new"' EXIT
    cat >"$new" && chmod "$2" "$new" || exit
    if [ -f "./${1##*/}" ] && [ ! -L "./${1##*/}" ]; then
        cp --attributes-only --preserve=all "./${1##*/}" "$new" || exit
    fi
    sync "$new" && mv -fT "$new" "./${1##*/}" && sync .
)
