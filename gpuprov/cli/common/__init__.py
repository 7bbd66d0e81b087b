"""Code that several verbs share: options, output, the selection of nodes."""
