#!/bin/sh
# initramfs.sh BLACKLIST IMAGE_PREFIX KERNEL… -- COMMAND…: run COMMAND KERNEL if the image is older than BLACKLIST.
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
for kernel in $kernels; do
    image=$prefix$kernel
    if [ -e "$image" ] && [ "$blacklist" -nt "$image" ]; then
        "$@" "$kernel"
        if ! [ "$blacklist" -nt "$image" ]; then echo "rebuilt $image"; fi
    fi
done
