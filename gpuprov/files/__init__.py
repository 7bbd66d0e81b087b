"""Files of this machine: state folders, locks, replacing a file in one step, files that are installed with gpuprov."""
