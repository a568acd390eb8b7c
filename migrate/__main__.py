"""`python -m migrate`, for who has the package but not its script on the path."""

from migrate.cli import main

main()
