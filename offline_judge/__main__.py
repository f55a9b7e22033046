"""`python -m offline_judge` is `offline-judge`."""

from offline_judge.cli import main

main()
