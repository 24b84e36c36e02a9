"""The event log: a local journal, fsynced, then the shared JetStream stream.

Import the modules: ``journal`` needs no network client, ``jetstream`` and ``shipper`` need nats-py.
"""
