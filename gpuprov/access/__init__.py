"""Access to nodes: settings of SSH and firewall, translated into sshd's options and nftables rules."""
