"""`python -m interlock.plugins.cli`."""

from interlock.plugins.cli.main import main

if __name__ == "__main__":
    main()
