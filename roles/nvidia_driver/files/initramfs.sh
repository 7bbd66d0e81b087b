#!/bin/sh
# initramfs.sh BLACKLIST IMAGE_PREFIX KERNEL… -- COMMAND…: run COMMAND KERNEL if the image is older than BLACKLIST,
# or contains NVIDIA's modules and is older than the module on disk.
# The installation of a driver often rebuilds images; an image that is newer than the blacklist contains it.
# dash and bash, the sh of the supported systems, have -nt.
# shellcheck disable=SC3013
set -eu
blacklist=$1 prefix=$2
shift 2
kernels=
while [ "$1" != -- ]; do
    kernels="$kernels $1"
    shift
done
shift
outdated() {
    [ "$blacklist" -nt "$image" ] && return
    for name in nvidia nvidia-current nvidia-current-open; do
        module=$(modinfo -k "$kernel" -F filename "$name" 2>/dev/null) || continue
        if [ "$module" -nt "$image" ]; then
            lsinitramfs "$image" | grep -qE '/nvidia([-_](current|tesla|open|uvm|modeset|drm|peermem|[0-9]+))*[.]ko' && return
        fi
    done
    return 1
}
for kernel in $kernels; do
    image=$prefix$kernel
    if [ -e "$image" ] && outdated; then
        "$@" "$kernel"
        if ! outdated; then echo "rebuilt $image"; fi
    fi
done
