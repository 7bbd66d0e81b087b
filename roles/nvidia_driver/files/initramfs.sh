#!/bin/sh
# initramfs.sh BLACKLIST IMAGE_PREFIX KERNEL… -- COMMAND…: run COMMAND KERNEL where the image is older than BLACKLIST.
# Installing a driver often rebuilds images by itself; one that is newer than the blacklist has it.
# dash and bash, which are sh of the systems that we know, have -nt.
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
