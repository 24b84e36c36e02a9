"""A simulated world for the real thing: deterministic simulation testing.

One seed stands for a job, its machines, the notices that come and what goes wrong
(``seeds.plan_of``). In it run the real ``Agent``, ``Coordinator``, ``Hub``, ``Ledger``,
``Effects``, ``Node``, ``LocalRanks``, ``RankServer``, ``RankSession``, ``Notices``, ``TcpLink``,
``Shipper``, ``Shipment``, ``CommitLog``, ``PosixStore`` and ``Journal``; the last two on real
directories, whose system calls (``files``) wait, fail and forget. Time, network, threads, broker,
launcher and the training script are simulated. Then every invariant is checked
(``checks.problems``), and a failing seed is shrunk (``shrink``).

    python -m drainfsm_kit.simulator --seeds 2000
    python -m drainfsm_kit.simulator --seed 42
    python -m drainfsm_kit.simulator --scale

What the world can do is what the real one can: TCP delays, goes silent and breaks, but it neither
loses, doubles nor swaps bytes; notices do come twice, out of order and late; the store and the
broker may do what they were asked and not say so, or do it later; a stopped process sleeps while
what it has sent arrives; a killed one runs no ``finally``.
"""
