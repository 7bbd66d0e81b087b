#!/bin/sh
# Written by gpuprov, role nvidia_driver: changes here are overwritten.
# Headers may be installed after their kernel: DKMS has built the module only now, and GRUB may choose that kernel.
[ ! -e /boot/grub/grub.cfg ] || ! command -v update-grub >/dev/null || update-grub || true
