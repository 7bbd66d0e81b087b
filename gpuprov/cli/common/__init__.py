"""What several verbs share: options, output, the choice of nodes."""
