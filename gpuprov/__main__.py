"""Entry point of ``python -m gpuprov``."""

from gpuprov.cli import main

if __name__ == "__main__":
    main()
