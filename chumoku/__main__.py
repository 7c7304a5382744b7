"""`python -m chumoku` is `chumoku`."""

from chumoku.cli import main

if __name__ == "__main__":
    main()
