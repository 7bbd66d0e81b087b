"""Files of this machine: state folders, locks, replacing a file in one step, files installed with gpuprov."""
