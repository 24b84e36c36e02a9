"""``python -m drainfsm``: the same as the ``drainfsm`` command."""

from drainfsm.cli.entry import main

if __name__ == "__main__":
    raise SystemExit(main())
