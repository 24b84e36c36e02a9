"""The test kit of this project: simulator, models, crashes, real processes and servers.

Never packaged. What users test with is ``drainfsm.testing``.
"""
