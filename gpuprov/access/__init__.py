"""Who may reach a node, and how: settings of SSH and firewall turned into sshd's and nftables' own words."""
