"""Files of a release: `gpuprov.pyz`, the wheelhouse, checksums, their signature and the notes."""
